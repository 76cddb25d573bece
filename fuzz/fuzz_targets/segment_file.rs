//! The reader of segment files: any bytes are refused or safe to use.
#![no_main]

use libfuzzer_sys::fuzz_target;
use specrs::draft::{Check, Limits, open_segment};

fuzz_target!(|bytes: &[u8]| {
    let path = std::env::temp_dir().join(format!("specrs-fuzz-{}", std::process::id()));
    std::fs::write(&path, bytes).expect("space on disk");
    for check in [Check::Quick, Check::Checksums, Check::Full] {
        let Ok((segment, _)) = open_segment(&path, check) else { continue };
        let mut found = Vec::new();
        let limits = Limits { matches: 8, min_length: 1, max_length: 64 };
        let text = segment.text();
        segment.matches_of(&text[..text.len() / 2], limits, &mut found);
        assert!(found.iter().all(|one| (one.position as usize) < text.len()));
    }
});
