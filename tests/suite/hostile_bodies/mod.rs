//! Hostile bodies of every shape at the real `nodegate serve`: each list, object, text and name of a field of both kinds of review,
//! blown up or of another type. Whatever is sent, memory stays bounded, and ordinary reviews are answered meanwhile.

mod counts;
mod shapes;
mod texts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nodegate_policy::CORRECTIONS_MAX;
use serde_json::json;

use crate::admission::{CREATE, edited};
use crate::crowd::Caller;
use crate::eventually::{eventually, holds};
use crate::serve::Serve;
use crate::shared::memory::{forget_peak, peak_memory};
use shapes::Draw;

/// Everything that judges keys is in force, so that all of what is sent is looked at.
const POLICY: &str = r#"
apiVersion: nodegate.dev/v1alpha1
kind: NodePolicy
metadata: {name: p}
spec:
  presets: [baseline, gpu]
  protect: {keys: [hardware.tier, "protected.example/*"]}
  persist: {labels: ["persist.demo/*"], taints: [dedicated]}
  rules:
    - {name: many, match: {expression: "node.metadata.labels.size() > 3"}, labels: {many: "true"}}
  governance:
    reserved: [{namespaces: [reserved.example], of: [labels, annotations, taints], allow: {users: [nobody]}}]
    naming: [{keys: ["*"], pattern: kebab-case, of: key}]
    immutable: [{keys: ["once.example/*"]}]
"#;

/// So many callers do not read their answers.
const UNREAD: usize = 64;
/// How much the memory of a server may rise. Without bounds it rises by hundreds of megabytes for many of these bodies. In a debug
/// build, values take more.
const RISE_MAX: u64 = if cfg!(debug_assertions) { 96 << 20 } else { 64 << 20 };

/// How many of the highest peaks are shown.
const HIGHEST: usize = 12;
/// How many pairs of bodies are drawn besides those that are always sent: all of them take minutes.
const DRAWN: usize = 4;
const DRAWN_IN_FULL: usize = 400;
/// How long the ordinary reviews are counted while nothing else is sent.
const QUIET: Duration = Duration::from_secs(1);
/// Of the ordinary reviews that are answered while nothing else is sent, at least one in so many is answered meanwhile. The callers
/// need processors as well.
const ANSWERED_ONE_IN: usize = 10;

fn is_full_run() -> bool {
    std::env::var("NODEGATE_REQUIRE").is_ok_and(|run| run == "full")
}

/// Starts the server, in a memory cgroup if `NODEGATE_CGROUP` names one, with the allocator set as in the image.
fn start() -> Serve {
    let cgroup = std::env::var("NODEGATE_CGROUP").unwrap_or_default();
    let enter = format!("echo $$ >'{cgroup}/cgroup.procs' && exec \"$@\"");
    let starter: &[&str] = if cgroup.is_empty() { &[] } else { &["sh", "-c", &enter, "sh"] };
    Serve::start_by(starter, &["--policy", "DIR/p.yaml"], &[("MIMALLOC_PURGE_DELAY", "0")], |directory| {
        std::fs::write(directory.join("p.yaml"), POLICY).unwrap();
    })
}

/// The CREATE by a kubelet that gets the largest answer: as many forged keys as are corrected, as long as keys can be.
fn most_corrections() -> String {
    edited(CREATE, |review| {
        for at in 0..CORRECTIONS_MAX {
            let key = format!("{}.nodegate.dev/{at:063}", "x".repeat(240));
            review["request"]["object"]["metadata"]["labels"][key] = json!("x");
        }
    })
}

/// Ordinary reviews, one after another, and how many of them were answered.
struct Ordinary {
    ended: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Ordinary {
    fn begin(caller: Caller) -> Self {
        let (ended, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let task = tokio::spawn({
            let (ended, answered) = (ended.clone(), answered.clone());
            async move {
                while !ended.load(Ordering::Relaxed) {
                    let answer = caller.review().await;
                    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                    answered.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
        Self { ended, answered, task }
    }

    fn count(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    async fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_sent_memory_is_bounded_and_ordinary_reviews_are_answered() {
    let mut draw = Draw::seeded();
    println!("NODEGATE_SEED={} draws the same bodies again", draw.seed());
    let serve = start();
    let hostile = [1, 2].map(|at| Caller::new(&serve, [127, 0, 1, at]));
    let ordinary = Caller::new(&serve, [127, 0, 0, 1]);
    assert!(ordinary.review().await.starts_with("HTTP/1.1 200"));
    let ordinary = Ordinary::begin(ordinary);
    tokio::time::sleep(QUIET).await;
    let (quiet, idle) = (ordinary.count(), peak_memory(serve.process()));
    let (mut tried, mut peaks) = (0, Vec::new());
    let (mut begun, mut meanwhile) = (Duration::ZERO, 0);
    for [one, other] in shapes::pairs(&mut draw, if is_full_run() { DRAWN_IN_FULL } else { DRAWN }) {
        let (one, other) = (one.made(), other.made());
        forget_peak(serve.process());
        let (started, before) = (Instant::now(), ordinary.count());
        let answers = tokio::join!(hostile[0].send(one.path, &one.text), hostile[1].send(other.path, &other.text));
        begun += started.elapsed();
        meanwhile += ordinary.count() - before;
        let what = format!("{} and {}", one.what, other.what);
        for answer in [&answers.0, &answers.1] {
            assert!(answer.starts_with("HTTP/1.1 "), "{what}: {answer}");
        }
        tried += 2;
        peaks.push((peak_memory(serve.process()).saturating_sub(idle), what));
    }
    forget_peak(serve.process());
    let unread = unread_answers(&serve, &hostile[0], &ordinary).await;
    tried += UNREAD;
    peaks.push((peak_memory(serve.process()).saturating_sub(idle), "answers that nobody reads".to_owned()));
    drop(unread);
    ordinary.end().await;
    peaks.sort_unstable_by(|one, other| other.cmp(one));
    let highest: Vec<String> =
        peaks.iter().take(HIGHEST).map(|(rise, what)| format!("{} MiB {what}", rise >> 20)).collect();
    let highest = highest.join("\n");
    let expected = quiet as f64 * begun.as_secs_f64() / QUIET.as_secs_f64();
    println!(
        "{tried} hostile bodies above {} MiB; {meanwhile} ordinary reviews answered meanwhile, {expected:.0} if nothing else were sent\n{highest}",
        idle >> 20
    );
    assert!(peaks[0].0 <= RISE_MAX, "{highest}");
    assert!(meanwhile as f64 >= expected / ANSWERED_ONE_IN as f64 - 1.0, "{meanwhile} of {expected:.0}");
}

/// The largest answers, which nobody reads.
async fn unread_answers(serve: &Serve, hostile: &Caller, ordinary: &Ordinary) -> Vec<impl Sized> {
    // How many reviews of others than the ordinary caller were answered, give or take its latest one.
    let of_others = || {
        let metrics = serve.get("/metrics");
        let begin = r#"nodegate_admission_requests_total{endpoint="mutate""#;
        let lines = metrics.lines().filter(|line| line.starts_with(begin));
        let all: usize = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum();
        all - ordinary.count()
    };
    let (body, before) = (most_corrections(), of_others());
    let mut unread = Vec::new();
    for _ in 0..UNREAD {
        unread.push(hostile.ask("/mutate", &body).await);
    }
    eventually("their answers are there", async || holds(of_others() + 1 >= before + UNREAD, || serve.get("/metrics")))
        .await;
    unread
}
