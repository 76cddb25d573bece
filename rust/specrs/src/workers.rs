//! Who does the work: the caller alone, threads of its own, or the OpenMP team that the caller already keeps.

use std::ffi::{c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

type Region = unsafe extern "C" fn(*mut c_void);
type GompParallel = unsafe extern "C" fn(Region, *mut c_void, c_uint, c_uint);

/// The address of an OpenMP runtime's `GOMP_parallel`.
///
/// A framework on OpenMP keeps a team whose threads spin for a while after each parallel region. Threads of our own would
/// fight with them for the cores: between two torch operators on two cores, an 8960 × 1536 bfloat16 product of 8 rows
/// took 1.7 ms at best in torch's team, 4.3 ms at best on threads of its own, and 3.0 ms on one thread.
#[derive(Clone, Copy, Debug)]
pub struct OpenMpParallel(GompParallel);

impl OpenMpParallel {
    /// Takes the address; `None` when it is null.
    ///
    /// # Safety
    ///
    /// `address` is null or the function `GOMP_parallel` of an OpenMP runtime that stays loaded.
    pub unsafe fn from_address(address: usize) -> Option<Self> {
        // SAFETY: the caller vouches for the function, and the null case is the `None` of the option.
        unsafe { std::mem::transmute::<usize, Option<GompParallel>>(address) }.map(Self)
    }
}

/// Who does the work.
#[derive(Clone, Copy, Debug)]
pub enum Workers {
    /// The calling thread alone.
    Serial,
    /// That many threads, the caller among them, started for the call.
    Threads(u32),
    /// The calling thread's OpenMP team of that many threads; 0 is the team's own size.
    OpenMp(OpenMpParallel, u32),
}

/// The process that started the OpenMP team. A forked child has the team's records but not its threads.
static TEAM_PROCESS: AtomicU32 = AtomicU32::new(0);

fn team_survives() -> bool {
    let process = std::process::id();
    match TEAM_PROCESS.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(owner) => owner == process,
    }
}

type Panic = Box<dyn std::any::Any + Send>;

struct Team<'a> {
    work: &'a (dyn Fn() + Sync),
    panic: Mutex<Option<Panic>>,
}

/// One worker's part of an OpenMP region.
unsafe extern "C" fn region(data: *mut c_void) {
    // SAFETY: `data` is the `Team` that `Workers::run` keeps alive during the region, and it is only shared.
    let team = unsafe { &*data.cast::<Team<'_>>() };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (team.work)()))
        && let Ok(mut first) = team.panic.lock()
    {
        first.get_or_insert(panic);
    }
}

impl Workers {
    /// How many they are, as far as is known beforehand.
    pub(crate) fn count(self) -> usize {
        match self {
            Self::Serial => 1,
            Self::Threads(count) | Self::OpenMp(_, count) => count.max(1) as usize,
        }
    }

    /// Runs `work` on each worker and returns when all are done. A panic of any is the caller's.
    pub(crate) fn run(self, work: &(dyn Fn() + Sync)) {
        match self {
            Self::Threads(count) if count > 1 => std::thread::scope(|scope| {
                for index in 1..count {
                    // Without a thread the rest do the work.
                    let _ =
                        std::thread::Builder::new().name(format!("specrs-worker-{index}")).spawn_scoped(scope, work);
                }
                work();
            }),
            Self::OpenMp(OpenMpParallel(parallel), count) if count != 1 && team_survives() => {
                let team = Team { work, panic: Mutex::new(None) };
                // SAFETY: the region has the type that the runtime calls, and `team` outlives it: the call joins.
                unsafe { parallel(region, (&raw const team).cast_mut().cast(), count, 0) };
                if let Ok(Some(panic)) = team.panic.into_inner() {
                    resume_unwind(panic);
                }
            }
            _ => work(),
        }
    }
}
