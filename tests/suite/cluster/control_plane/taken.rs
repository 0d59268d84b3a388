//! Control planes, each in use by one test at a time.

use std::sync::{Condvar, Mutex, OnceLock, PoisonError, mpsc};
use std::thread;

use super::{ControlPlane, SpawnRequest, assets, spawn};

/// Exclusive use of a control plane: webhook configurations are cluster-wide.
pub(crate) struct Exclusive {
    pub(crate) plane: &'static ControlPlane,
    _places: Vec<Taken>,
}

/// How many control planes there are at most. With two, a run is shorter by a third than with one.
const PLANES: usize = 2;

/// Which control planes are in use.
static IN_USE: Mutex<[bool; PLANES]> = Mutex::new([false; PLANES]);
static GIVEN_BACK: Condvar = Condvar::new();

/// One control plane, in use until this is dropped.
struct Taken(usize);

impl Drop for Taken {
    fn drop(&mut self) {
        IN_USE.lock().unwrap_or_else(PoisonError::into_inner)[self.0] = false;
        GIVEN_BACK.notify_all();
    }
}

/// Takes control planes as soon as `count` are free, in the order of those who ask.
fn take(count: usize) -> Vec<Taken> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    let free = |in_use: &[bool; PLANES]| (0..PLANES).filter(|at| !in_use[*at]).take(count).collect::<Vec<_>>();
    let mut in_use =
        GIVEN_BACK.wait_while(in_use, |in_use| free(in_use).len() < count).unwrap_or_else(PoisonError::into_inner);
    let taken = free(&in_use);
    taken.iter().for_each(|at| in_use[*at] = true);
    taken.into_iter().map(Taken).collect()
}

/// Waits until a control plane is free, and starts it if nobody did before. It is empty.
pub(crate) fn exclusive() -> Exclusive {
    empty_plane(take(1))
}

fn empty_plane(places: Vec<Taken>) -> Exclusive {
    let plane = started(places[0].0);
    plane.make_empty().unwrap_or_else(|error| panic!("the control plane could not be made empty: {error}"));
    Exclusive { plane, _places: places }
}

/// Like [`exclusive`], while no other control plane is in use: for a test that needs all of the machine.
#[allow(dead_code, reason = "benches have the machine to themselves")]
pub(crate) fn undisturbed() -> Exclusive {
    empty_plane(take(PLANES))
}

/// The control plane at this place, which is started at the first call.
fn started(at: usize) -> &'static ControlPlane {
    static STARTED: [OnceLock<ControlPlane>; PLANES] = [const { OnceLock::new() }; PLANES];
    STARTED[at].get_or_init(|| {
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let (requests, wanted) = mpsc::channel::<SpawnRequest>();
            let started = ControlPlane::start(at, requests);
            let failed = started.is_err();
            let _ = sender.send(started);
            if failed {
                return;
            }
            // The children are ended by the kernel with this thread's process, not by a destructor.
            while let Ok((program, arguments, log, answer)) = wanted.recv() {
                let _ = answer.send(spawn(&assets().join(program), &arguments, &log));
            }
        });
        receiver
            .recv()
            .expect("the starting thread answers")
            .unwrap_or_else(|error| panic!("the control plane did not start: {error}"))
    })
}
