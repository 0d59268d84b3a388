//! Waiting for what a test expects.

use std::fmt::Display;
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before its test has failed. It is generous, because the machine may have other work, and no test
/// takes longer because of it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// The time between two looks: a look that starts a program must not keep a core busy.
fn pause(look: Duration) -> Duration {
    (2 * look).clamp(PAUSE_MIN, Duration::from_secs(1))
}

/// What a look at something says: that it is as expected, or what it is instead.
pub(crate) trait Look {
    type Found;

    fn found(self) -> Result<Self::Found, String>;
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "it is not so".to_owned())
    }
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.ok_or_else(|| "there is none".to_owned())
    }
}

impl<T, E: Display> Look for Result<T, E> {
    type Found = T;

    fn found(self) -> Result<T, String> {
        self.map_err(|error| error.to_string())
    }
}

/// `Ok` if it holds, else the state that is to be shown if it never does.
pub(crate) fn holds<S: Display>(so: bool, state: impl FnOnce() -> S) -> Result<(), String> {
    if so { Ok(()) } else { Err(state().to_string()) }
}

/// Looks again and again until it is as expected, and returns what was found. Fails after [`PATIENCE`], with the last state.
pub(crate) async fn eventually<L: Look>(what: &str, mut look: impl AsyncFnMut() -> L) -> L::Found {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let begin = Instant::now();
        match look().await.found() {
            Ok(found) => return found,
            Err(state) => assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}\n{state}"),
        }
        tokio::time::sleep(pause(begin.elapsed())).await;
    }
}

/// The same outside of a runtime.
pub(crate) fn eventually_blocking<L: Look>(what: &str, mut look: impl FnMut() -> L) -> L::Found {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let begin = Instant::now();
        match look().found() {
            Ok(found) => return found,
            Err(state) => assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}\n{state}"),
        }
        thread::sleep(pause(begin.elapsed()));
    }
}

/// Lets time pass to show that something does not happen in it. Only for what nothing signals.
pub(crate) async fn for_a_while(time: Duration) {
    tokio::time::sleep(time).await;
}

/// The same outside of a runtime.
pub(crate) fn for_a_while_blocking(time: Duration) {
    thread::sleep(time);
}
