//! Spreads independent rows over threads that live as long as the call: no pool to fork, to size or to deadlock on.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Logits below which starting a thread costs more than it saves.
const WORTH_A_THREAD: usize = 1 << 20;

/// Threads that can run at once. Asked once: the answer takes longer than the work of a small call.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

/// `(0..count).map(work)` with one `state` per thread. `size` is the amount of work in logits.
pub(crate) fn map<S, T: Send>(
    count: usize,
    size: usize,
    state: impl Fn() -> S + Sync,
    work: impl Fn(usize, &mut S) -> T + Sync,
) -> Vec<T> {
    let wanted = count.min(1 + size / WORTH_A_THREAD);
    let threads = if wanted < 2 { 1 } else { wanted.min(cores()) };
    if threads < 2 {
        let mut state = state();
        return (0..count).map(|index| work(index, &mut state)).collect();
    }
    let next = AtomicUsize::new(0);
    let run = || {
        let (mut state, mut done) = (state(), Vec::with_capacity(count / threads + 1));
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return done;
            }
            done.push((index, work(index, &mut state)));
        }
    };
    let mut all = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut all = run();
        for other in others {
            match other.join() {
                Ok(part) => all.extend(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_unstable_by_key(|part| part.0);
    all.into_iter().map(|part| part.1).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn order_is_kept_with_and_without_threads() {
        for size in [0, usize::MAX / 2] {
            let squares = super::map(1000, size, || 0, |index, _| index * index);
            assert!(squares.iter().enumerate().all(|(index, &square)| square == index * index));
        }
    }
}
