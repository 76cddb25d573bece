//! A process that writes a store is killed before every single step that changes the disk, half-written blocks included:
//! the store is then the one before or the one after, and goes on working.
//!
//! The test runs itself as the process to kill: it stops at step number `SPECRS_CRASH_STEP` and waits there for SIGKILL.
#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use specrs::draft::{Check, Fingerprint, SEPARATOR, Segment, Store, WriteStep, watch_writes};

const NAME: &str = "killed_at_every_step_the_store_is_the_old_or_the_new_one";
const MARK: &str = "stopped";

static LEFT: AtomicUsize = AtomicUsize::new(0);

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn fingerprint() -> Fingerprint {
    Fingerprint::new("tokenizer-7").expect("short")
}

/// Segment number `which`; the sizes differ, and the second one takes more than one block.
fn segment(which: usize) -> Arc<Segment> {
    let len: u32 = [50, 70_000, 30][which];
    let tokens: Vec<u32> = (0..len).map(|at| at.wrapping_mul(at).wrapping_add(which as u32) % 97).collect();
    Arc::new(Segment::from_documents(&tokens, &[0, 10, i64::from(len)]).expect("sound documents"))
}

/// What the killed process does; each operation takes the store from one state of `states` to the next.
fn operate(folder: &Path) {
    let store = Store::create(folder, fingerprint()).expect("a fresh folder");
    store.add(&[segment(0)]).expect("space on disk");
    store.add(&[segment(1), segment(2)]).expect("space on disk");
    store.merge().expect("space on disk");
}

/// Texts of the store's segments in each state that may be seen, oldest first.
fn states() -> [Vec<Vec<u32>>; 4] {
    let texts: Vec<Vec<u32>> = (0..3).map(|which| segment(which).text().to_vec()).collect();
    [Vec::new(), vec![texts[0].clone()], texts.clone(), vec![texts.concat()]]
}

/// Waits at the step that was asked for, until the parent kills this process.
fn stop_here(step: WriteStep) {
    if LEFT.fetch_sub(1, Ordering::SeqCst) == 1 {
        let mark = PathBuf::from(variable("SPECRS_CRASH_MARK").expect("set by the parent"));
        std::fs::write(mark, format!("{step:?}")).expect("space on disk");
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

fn spawn(folder: &Path, mark: &Path, step: usize) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args([NAME, "--exact", "--test-threads=1"])
        .env("SPECRS_CRASH_STEP", step.to_string())
        .env("SPECRS_CRASH_FOLDER", folder)
        .env("SPECRS_CRASH_MARK", mark)
        .stdout(Stdio::null())
        .spawn()
        .expect("this test runs")
}

/// Kills the process when it has stopped. None if it ran to its end instead.
fn kill_when_stopped(child: &mut Child, mark: &Path) -> Option<String> {
    loop {
        if let Some(step) = std::fs::read_to_string(mark).ok().filter(|text| !text.is_empty()) {
            child.kill().expect("it waits");
            child.wait().expect("it is ours");
            return Some(step);
        }
        if let Some(status) = child.try_wait().expect("it is ours") {
            assert!(status.success(), "the operations failed without being killed");
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn killed_at_every_step_the_store_is_the_old_or_the_new_one() {
    if let Some(step) = variable("SPECRS_CRASH_STEP") {
        LEFT.store(step.parse().expect("a number"), Ordering::SeqCst);
        watch_writes(stop_here);
        operate(Path::new(&variable("SPECRS_CRASH_FOLDER").expect("set by the parent")));
        return;
    }
    let root = std::env::temp_dir().join(format!("specrs-crash-{}", std::process::id()));
    let states = states();
    let (mut state, mut kinds, mut steps) = (0, Vec::new(), 0);
    for step in 1.. {
        let folder = root.join(format!("store-{step}"));
        let mark = root.join(format!("{MARK}-{step}"));
        std::fs::create_dir_all(&root).expect("a temporary folder");
        let mut child = spawn(&folder, &mark, step);
        let Some(kind) = kill_when_stopped(&mut child, &mark) else { break };
        steps = step;
        kinds.push(kind);
        let Ok(store) = Store::open(&folder, &fingerprint()) else {
            assert_eq!(state, 0, "step {step}: a store that was there is gone");
            // Killed before there was one: making it again works.
            Store::create(&folder, fingerprint()).expect("what is left does not stand in the way");
            continue;
        };
        store.verify().unwrap_or_else(|error| panic!("step {step}, {kinds:?}: {error}"));
        let segments = store.segments(Check::Full).expect("verified");
        let texts: Vec<Vec<u32>> = segments.iter().map(|one| one.text().to_vec()).collect();
        let seen = states.iter().position(|known| *known == texts);
        let seen = seen.unwrap_or_else(|| panic!("step {step}: {} segments are no known state", texts.len()));
        assert!(seen == state || seen == state + 1, "step {step}: state {seen} after {state}");
        state = seen;
        // It goes on working, and what the killed process left behind is swept.
        store.add(&[segment(2)]).expect("the lock went with its process");
        store.merge().expect("space on disk");
        let text = store.segments(Check::Full).expect("just written").pop().expect("one segment").text().to_vec();
        assert_eq!(text, [texts.concat(), segment(2).text().to_vec()].concat());
        assert_eq!(text.last(), Some(&SEPARATOR));
        let mut left: Vec<String> = std::fs::read_dir(&folder)
            .expect("the store")
            .map(|file| file.expect("the store").file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        assert!(left.len() == 3 && left[0] == "lock" && left[1] == "manifest", "step {step}: {left:?}");
    }
    std::fs::remove_dir_all(&root).expect("ours");
    assert_eq!(state, states.len() - 1, "the last state was reached");
    for kind in ["Create", "Write", "Sync", "Rename", "SyncFolder", "Remove"] {
        assert!(kinds.iter().any(|seen| seen == kind), "no {kind} among {steps} steps: {kinds:?}");
    }
}
