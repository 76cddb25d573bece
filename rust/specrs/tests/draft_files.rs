//! The reader of segment files against damage: every byte changed, every length, foreign bytes. Nothing panics, full
//! checks find every damage, and a file that the quick check lets through never reads outside itself.
//!
//! `fuzz/` holds the same as a `libFuzzer` target. `SPECRS_FUZZ_OPERATIONS` makes this longer.

use std::path::{Path, PathBuf};

use specrs::draft::{Check, Fingerprint, Limits, Segment, open_segment, write_segment};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("specrs-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn segment() -> Segment {
    let tokens: Vec<u32> = (0..60_u32).map(|at| at * at % 7 + (at % 3) * 100_000).collect();
    Segment::from_documents(&tokens, &[0, 20, 20, 45, 60]).expect("sound documents")
}

/// Opens with every check. What opens is used; the result must stay within the file's own tokens.
fn open_and_use(path: &Path) -> [bool; 3] {
    [Check::Quick, Check::Checksums, Check::Full].map(|check| {
        let Ok((segment, _)) = open_segment(path, check) else { return false };
        let limits = Limits { matches: 8, min_length: 1, max_length: 64 };
        let text = segment.text().to_vec();
        for end in [1, text.len() / 2, text.len()] {
            let context = &text[..end.min(text.len())];
            let mut found = Vec::new();
            segment.matches_of(context, limits, &mut found);
            assert!(found.iter().all(|one| (one.position as usize) < text.len()));
            if let Some(pattern) = context.get(context.len().saturating_sub(2)..) {
                let _ = segment.count(pattern);
            }
        }
        true
    })
}

#[test]
fn every_changed_byte_is_found() {
    let folder = Folder::new("bytes");
    let path = folder.0.join("segment");
    write_segment(&path, &segment(), &Fingerprint::new("abc").expect("short")).expect("space on disk");
    let sound = std::fs::read(&path).expect("just written");
    assert_eq!(open_and_use(&path), [true; 3]);
    let damaged = folder.0.join("damaged");
    for at in 0..sound.len() {
        for change in [1_u8, 0x80] {
            let mut bytes = sound.clone();
            bytes[at] ^= change;
            std::fs::write(&damaged, &bytes).expect("space on disk");
            let [_, checksums, full] = open_and_use(&damaged);
            assert!(!checksums && !full, "byte {at} ^ {change}");
        }
    }
    for length in (0..sound.len()).chain([sound.len() + 1, sound.len() + 4]) {
        let mut bytes = sound.clone();
        bytes.resize(length, 0);
        std::fs::write(&damaged, &bytes).expect("space on disk");
        assert_eq!(open_and_use(&damaged), [false; 3], "{length} bytes");
    }
}

/// Damage with its checksums made right again: what a wrong writer would make, and what checksums cannot find.
#[test]
fn wrong_content_under_right_checksums_reads_nothing_outside() {
    let folder = Folder::new("content");
    let path = folder.0.join("segment");
    write_segment(&path, &segment(), &Fingerprint::default()).expect("space on disk");
    let sound = std::fs::read(&path).expect("just written");
    let rounds = std::env::var("SPECRS_FUZZ_OPERATIONS").map_or(600, |text| text.parse().expect("a number"));
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let sizes = [word(&sound, 24) * 8, word(&sound, 8) * 4, word(&sound, 16) * 4].map(|size| size as usize);
    let mut opened = [0; 3];
    for _ in 0..rounds {
        let mut bytes = sound.clone();
        for _ in 0..=random(3) {
            let at = 8 + random(bytes.len() - 8);
            let near = [0, 1, 0xff, bytes[at].wrapping_add(1), bytes[at].wrapping_sub(1)];
            bytes[at] = near[random(near.len())];
        }
        let mut start = 128;
        for (part, size) in sizes.into_iter().enumerate() {
            let sum = crc32fast::hash(&bytes[start..start + size]);
            bytes[40 + 4 * part..44 + 4 * part].copy_from_slice(&sum.to_le_bytes());
            start += size;
        }
        let sum = crc32fast::hash(&bytes[..124]);
        bytes[124..128].copy_from_slice(&sum.to_le_bytes());
        std::fs::write(&path, &bytes).expect("space on disk");
        for (count, one) in opened.iter_mut().zip(open_and_use(&path)) {
            *count += usize::from(one);
        }
    }
    assert_eq!(opened[0], opened[1], "right checksums are right");
    assert!(opened[2] < opened[1], "the full check knows more: {opened:?}");
}
