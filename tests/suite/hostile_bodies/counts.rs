//! Bounds that add up, and turns: what many of them at once take, and who waits for whom.

use std::fs;

use serde_json::{Value, json};

use super::shapes::{POLICY_REVIEW, reviews};
use super::{RISE_MAX, start};
use crate::admission::PATIENT;
use crate::authority;
use crate::crowd::Caller;
use crate::serve::Serve;
use crate::shared::memory::{forget_peak, peak_memory};

fn review(name: &str) -> Value {
    reviews().into_iter().find_map(|(what, review)| (what == name).then_some(review)).unwrap()
}

/// As many labels as no API server sends more of, with names that end in `end`.
fn labels(count: usize, end: &str) -> Value {
    (0..count).map(|at| (format!("{at:x}{end}"), json!(""))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_labels_as_fit_in_both_versions_of_a_node_take_bounded_memory() {
    let mut update = review("UPDATE by its kubelet");
    update["request"]["object"]["metadata"]["labels"] = labels(179_000, "n");
    update["request"]["oldObject"]["metadata"]["labels"] = labels(179_000, "o");
    update["request"]["object"]["metadata"]["labels"]["hardware.tier"] = json!("gold");
    let update = update.to_string();
    let serve = start();
    let hostile = Caller::new(&serve, [127, 0, 1, 1]);
    assert!(hostile.review().await.starts_with("HTTP/1.1 200"));
    let idle = peak_memory(serve.process());
    for path in ["/validate", "/mutate"] {
        forget_peak(serve.process());
        let answer = hostile.whole(path, &update).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:.300}");
        let rise = peak_memory(serve.process()).saturating_sub(idle);
        println!("{path} {} bytes: {} MiB", update.len(), rise >> 20);
        assert!(rise <= RISE_MAX, "{path}: {} MiB", rise >> 20);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_keeps_sending_policies_does_not_keep_those_of_others_from_being_judged() {
    let serve = start();
    let policy = review(POLICY_REVIEW).to_string();
    let (hostile, administrator) = (Caller::new(&serve, [127, 0, 1, 1]), Caller::new(&serve, [127, 0, 0, 1]));
    let (begun, mut begins) = tokio::sync::mpsc::channel(8);
    let loud: Vec<_> = (0..8)
        .map(|_| {
            let (hostile, policy, begun) = (hostile.clone(), policy.clone(), begun.clone());
            tokio::spawn(async move {
                loop {
                    hostile.send("/validate", &policy).await;
                    let _ = begun.try_send(());
                }
            })
        })
        .collect();
    for _ in 0..8 {
        begins.recv().await.unwrap();
    }
    for _ in 0..10 {
        let answer = administrator.send("/validate", &policy).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    loud.iter().for_each(tokio::task::JoinHandle::abort);
    let metrics = serve.get("/metrics");
    let shed = metrics.lines().find(|line| line.contains("outcome=\"shed\"") && line.contains("validate"));
    assert!(shed.is_some_and(|line| !line.ends_with(" 0")), "of the loud ones, some are not answered: {shed:?}");
}

/// Each writes two objects with 390,000 entries, and an expression reads them.
#[test]
fn sixteen_concurrent_writes_of_nodes_with_very_many_images_fit_into_the_memory_of_a_replica() {
    let policy = "apiVersion: nodegate.dev/v1alpha1\nkind: NodePolicy\nmetadata: {name: images}\nspec:\n  governance:\n    expressions:\n      - {name: images, expression: 'object.status.images.size() < 1000000'}\n";
    let serve = Serve::start(&["--policy", "DIR/policy.yaml"], &[], |directory| {
        fs::write(directory.join("policy.yaml"), policy).unwrap();
    });
    let ca = fs::read(serve.path("certs/ca.crt")).unwrap();
    let recorded = include_str!("../../data/admission-reviews/admin-label-update.json");
    let with_images = |count: usize| {
        let mut review: Value = serde_json::from_str(recorded).unwrap();
        for object in ["object", "oldObject"] {
            review["request"][object]["status"]["images"] = vec![json!({}); count].into();
        }
        review.to_string()
    };
    let (huge, ordinary) = (with_images(390_000), with_images(50));
    let path = format!("/validate{PATIENT}");
    let judge = |review: &str| authority::post(&serve.address, &ca, &path, review).unwrap();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..16).map(|_| scope.spawn(|| judge(&huge))).collect();
        let meanwhile = judge(&ordinary);
        assert!(meanwhile.starts_with("HTTP/1.1 200") && meanwhile.contains("\"allowed\":true"), "{meanwhile}");
        for writer in writers {
            let answer = writer.join().unwrap();
            assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("KiB of memory"), "{answer}");
        }
    });
    let peak = serve.peak_memory();
    assert!(peak < 256 << 20, "{} KiB", peak >> 10);
}
