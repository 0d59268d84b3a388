//! Decides which node is processed next: nodes that are waiting to join come before repairs.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How many joining nodes are processed concurrently.
const JOINING_MAX: usize = 32;
/// How many other nodes are processed concurrently.
const ROUTINE_MAX: usize = 16;

/// Why a node is processed. Nodes are processed in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// The node has a pending taint, so no pod can run on it until it is processed.
    Joining,
    /// Repairs, records, history.
    Routine,
}

impl Urgency {
    /// The word for it in traces.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Routine => "routine",
        }
    }
}

/// The sending end of the queue.
#[derive(Clone, Debug)]
pub(crate) struct Queue(mpsc::UnboundedSender<(Arc<str>, Urgency)>);

/// The receiving end of a [`Queue`].
pub(crate) type Wakes = mpsc::UnboundedReceiver<(Arc<str>, Urgency)>;

impl Queue {
    /// Creates a queue, and the input of [`work`].
    pub(crate) fn new() -> (Self, Wakes) {
        let (wake, wakes) = mpsc::unbounded_channel();
        (Self(wake), wakes)
    }

    /// Schedules a node to be processed when its turn comes.
    pub(crate) fn wake(&self, node: &str, urgency: Urgency) {
        // The receiver lives as long as the term.
        let _ = self.0.send((node.into(), urgency));
    }
}

/// Processes every scheduled node, one node never twice concurrently, until dropped. `run` returns after how long the
/// node is to be processed again. `report` gets how many wait, by urgency, whenever that may have changed.
pub(crate) async fn work<F, R>(mut wakes: Wakes, run: F, report: impl Fn([usize; 2]))
where
    F: Fn(Arc<str>, Urgency) -> R,
    R: Future<Output = Option<Again>>,
{
    let mut line = Line::default();
    let mut running = FuturesUnordered::new();
    loop {
        while let Some((node, urgency)) = line.next(Instant::now()) {
            let done = run(node.clone(), urgency);
            running.push(async move { (node, done.await) });
        }
        report(line.waiting);
        let due = line.next_due();
        tokio::select! {
            woken = wakes.recv() => match woken {
                Some((node, urgency)) => line.wake(node, urgency),
                None => return,
            },
            Some((node, again)) = running.next() => line.finished(&node, again, Instant::now()),
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }
}

/// When a node is processed again if nothing wakes it before, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Again {
    pub(crate) after: Duration,
    pub(crate) urgency: Urgency,
}

/// The state of a node in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Queued(Urgency),
    /// It is being processed; `woken` is set if it must be processed again afterwards.
    Running {
        place: Urgency,
        woken: Option<Urgency>,
    },
    /// It is processed again at this time.
    Later(Instant, Urgency),
}

/// The waiting nodes, in two queues.
#[derive(Debug, Default)]
struct Line {
    nodes: HashMap<Arc<str>, Stand>,
    /// Entries whose node has another state by now are skipped.
    joining: VecDeque<Arc<str>>,
    routine: VecDeque<Arc<str>>,
    later: BinaryHeap<Reverse<(Instant, Arc<str>)>>,
    /// How many of each urgency are being processed.
    running: [usize; 2],
    /// How many of each urgency are queued.
    waiting: [usize; 2],
}

impl Line {
    fn row(&mut self, urgency: Urgency) -> &mut VecDeque<Arc<str>> {
        match urgency {
            Urgency::Joining => &mut self.joining,
            Urgency::Routine => &mut self.routine,
        }
    }

    fn running(&mut self, urgency: Urgency) -> &mut usize {
        &mut self.running[urgency as usize]
    }

    fn waiting(&mut self, urgency: Urgency) -> &mut usize {
        &mut self.waiting[urgency as usize]
    }

    fn wake(&mut self, node: Arc<str>, urgency: Urgency) {
        let mut moved = None;
        match self.nodes.entry(node.clone()) {
            Entry::Occupied(mut stand) => match stand.get_mut() {
                Stand::Queued(queued) if *queued <= urgency => return,
                Stand::Queued(queued) => moved = Some(std::mem::replace(queued, urgency)),
                Stand::Running { woken, .. } => {
                    *woken = Some(woken.map_or(urgency, |before| before.min(urgency)));
                    return;
                }
                Stand::Later(..) => drop(stand.insert(Stand::Queued(urgency))),
            },
            Entry::Vacant(stand) => drop(stand.insert(Stand::Queued(urgency))),
        }
        if let Some(before) = moved {
            *self.waiting(before) -= 1;
        }
        *self.waiting(urgency) += 1;
        self.row(urgency).push_back(node);
    }

    /// The node to process now, if one is waiting and the concurrency limit allows it.
    fn next(&mut self, now: Instant) -> Option<(Arc<str>, Urgency)> {
        while let Some(Reverse((at, node))) = self.later.peek().filter(|Reverse((at, _))| *at <= now) {
            let (at, node) = (*at, node.clone());
            self.later.pop();
            if let Some(&Stand::Later(due, urgency)) = self.nodes.get(&node)
                && due == at
            {
                self.wake(node, urgency);
            }
        }
        for (urgency, places) in [(Urgency::Joining, JOINING_MAX), (Urgency::Routine, ROUTINE_MAX)] {
            while *self.running(urgency) < places
                && let Some(node) = self.row(urgency).pop_front()
            {
                if let Some(stand) = self.nodes.get_mut(&node)
                    && *stand == Stand::Queued(urgency)
                {
                    *stand = Stand::Running { place: urgency, woken: None };
                    *self.running(urgency) += 1;
                    *self.waiting(urgency) -= 1;
                    return Some((node, urgency));
                }
            }
        }
        None
    }

    /// When the next scheduled node is due.
    fn next_due(&self) -> Option<Instant> {
        self.later.peek().map(|Reverse((at, _))| *at)
    }

    fn finished(&mut self, node: &Arc<str>, again: Option<Again>, now: Instant) {
        let Some(Stand::Running { place, woken }) = self.nodes.remove(node) else { return };
        *self.running(place) -= 1;
        match (woken, again) {
            (Some(urgency), _) => self.wake(node.clone(), urgency),
            (None, Some(Again { after, urgency })) => {
                let at = now + after;
                self.nodes.insert(node.clone(), Stand::Later(at, urgency));
                self.later.push(Reverse((at, node.clone())));
            }
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(line: &mut Line, now: Instant) -> Vec<String> {
        std::iter::from_fn(|| line.next(now)).map(|(node, _)| node.to_string()).collect()
    }

    #[test]
    fn joining_nodes_come_first_and_have_their_own_concurrency_limit() {
        let (mut line, now) = (Line::default(), Instant::now());
        for at in 0..100 {
            line.wake(format!("old-{at}").into(), Urgency::Routine);
        }
        assert_eq!(drain(&mut line, now).len(), ROUTINE_MAX, "the limit for repairs is reached");
        line.wake("new".into(), Urgency::Joining);
        // A joining node that is woken for a repair as well keeps its position. A node waiting for a repair that
        // starts to join moves forward.
        line.wake("new".into(), Urgency::Routine);
        assert_eq!(line.waiting, [1, 100 - ROUTINE_MAX]);
        line.wake("old-99".into(), Urgency::Joining);
        assert_eq!(line.waiting, [2, 99 - ROUTINE_MAX], "a node that moves forward waits once");
        assert_eq!(drain(&mut line, now), ["new", "old-99"]);
        assert_eq!(line.waiting, [0, 99 - ROUTINE_MAX]);
        line.finished(&"old-0".into(), None, now);
        assert_eq!(drain(&mut line, now), ["old-16"]);
    }

    #[test]
    fn a_node_is_never_processed_twice_concurrently_and_no_wake_is_lost() {
        let (mut line, now) = (Line::default(), Instant::now());
        line.wake("n".into(), Urgency::Routine);
        assert_eq!(drain(&mut line, now), ["n"]);
        line.wake("n".into(), Urgency::Routine);
        line.wake("n".into(), Urgency::Joining);
        assert_eq!(drain(&mut line, now), Vec::<String>::new());
        line.finished(&"n".into(), Some(Again { after: Duration::from_secs(300), urgency: Urgency::Routine }), now);
        assert_eq!(line.next(now), Some(("n".into(), Urgency::Joining)));
        line.finished(&"n".into(), None, now);
        assert!(line.nodes.is_empty() && line.running == [0, 0], "a finished node is forgotten");
    }

    #[test]
    fn a_node_is_processed_again_at_its_time_and_only_once_if_it_was_woken_before() {
        let (mut line, now) = (Line::default(), Instant::now());
        let again = |seconds| Some(Again { after: Duration::from_secs(seconds), urgency: Urgency::Routine });
        line.wake("n".into(), Urgency::Routine);
        assert_eq!(drain(&mut line, now), ["n"]);
        line.finished(&"n".into(), again(10), now);
        assert_eq!(drain(&mut line, now + Duration::from_secs(9)), Vec::<String>::new());
        line.wake("n".into(), Urgency::Routine);
        assert_eq!(drain(&mut line, now + Duration::from_secs(9)), ["n"]);
        line.finished(&"n".into(), again(10), now + Duration::from_secs(9));
        assert_eq!(
            drain(&mut line, now + Duration::from_secs(10)),
            Vec::<String>::new(),
            "the earlier schedule is void"
        );
        assert_eq!(drain(&mut line, now + Duration::from_secs(19)), ["n"]);
    }

    #[tokio::test(start_paused = true)]
    async fn every_woken_node_is_processed_until_it_requests_no_further_run() {
        let (queue, wakes) = Queue::new();
        for at in 0..200 {
            queue.wake(&format!("n{at}"), Urgency::Routine);
        }
        let runs = std::cell::RefCell::new(HashMap::<Arc<str>, u32>::new());
        let run = |node: Arc<str>, _| {
            let count = *runs.borrow_mut().entry(node).and_modify(|count| *count += 1).or_insert(1);
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                (count < 3).then_some(Again { after: Duration::from_secs(1), urgency: Urgency::Routine })
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(60), work(wakes, run, |_| {})).await;
        assert!(runs.borrow().len() == 200 && runs.borrow().values().all(|count| *count == 3), "{runs:?}");
    }
}
