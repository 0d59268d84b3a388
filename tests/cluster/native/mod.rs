//! Native admission policies and nodegate answer alike: hundreds of generated policies, nodes, requesters and
//! writes on the real API server, compared with `decide` and `judge` in process.
//!
//! All sets are in force at once, each for the nodes of its own name prefix, so that one wait is enough.
#![allow(clippy::await_holding_lock, reason = "one test at a time uses the control plane")]

#[path = "../../../crates/nodegate-policy/tests/suite/random/demanded.rs"]
mod demanded;
mod directed;
mod examples;
mod expected;
#[path = "../../../crates/nodegate-policy/tests/suite/random/generator.rs"]
mod generator;
mod kept;
mod writer;

use std::collections::BTreeMap;

use nodegate_policy::api::policy::NodePolicySpec;
use nodegate_policy::native::{LeftOut, NativeOptions, export};
use nodegate_policy::{Exemptions, Identities, Origin, PolicyDocument, PolicySet};
use serde_json::{Value, json};

use super::control_plane::{ControlPlane, exclusive};
use super::requester::until_cached;
use crate::eventually::eventually;
use expected::{Expected, Hidden};
use generator::Random;
use writer::{Outcome, Who, Writer};

const SETS: u64 = 30;
const NODES: u64 = 6;
const UPDATES: u64 = 4;

const SELF_USER: &str = "system:serviceaccount:nodegate:nodegate";
const BREAK_GLASS: &str = "nodegate:break-glass";

/// A generated set with the objects it is exported to.
struct Exported {
    set: PolicySet,
    spec: Value,
    prefix: String,
    objects: Vec<Value>,
    left_out: Vec<LeftOut>,
}

impl Exported {
    /// A set that loads, for nodes whose names begin with `prefix`.
    fn draw(random: &mut Random, number: u64) -> Self {
        let prefix = format!("native{number}-");
        loop {
            let spec = generator::policy(random, &prefix);
            let typed: NodePolicySpec = serde_json::from_value(spec.clone()).unwrap();
            let Ok(set) = PolicySet::compile(&[PolicyDocument::new("p", Origin::Object, typed)]) else { continue };
            return Self::new(set, spec, prefix);
        }
    }

    /// A set that shows by a probe whether it is in force.
    fn last() -> Self {
        let spec = json!({
            "rules": [{"name": "given", "labels": {"probe.test/given": "x"}}],
            "governance": {"reserved": [
                {"name": "deny", "keys": ["probe.test/deny"]}, {"name": "warn", "keys": ["probe.test/warn"], "mode": "warn"},
            ]},
        });
        Self::of(spec, "native-last-")
    }

    fn of(spec: Value, prefix: &str) -> Self {
        let typed: NodePolicySpec = serde_json::from_value(spec.clone()).unwrap();
        let set = PolicySet::compile(&[PolicyDocument::new("p", Origin::Object, typed)]).unwrap();
        Self::new(set, spec, prefix.to_owned())
    }

    fn new(set: PolicySet, spec: Value, prefix: String) -> Self {
        let options = NativeOptions {
            name: prefix.trim_end_matches('-').to_owned(),
            break_glass_groups: vec![BREAK_GLASS.to_owned()],
            self_user: Some(SELF_USER.to_owned()),
            ..NativeOptions::default()
        };
        let exported = export(&set, &options);
        let mut objects = exported.objects;
        // Only so that many sets can be in force at once.
        let own = json!({"name": "own-nodes", "expression": format!("object.metadata.?name.orValue(\"\").startsWith({prefix:?})")});
        for conditions in objects.iter_mut().filter_map(|object| object["spec"]["matchConditions"].as_array_mut()) {
            conditions.insert(0, own.clone());
        }
        Self { set, spec, prefix, objects, left_out: exported.left_out }
    }
}

/// What the comparisons were about, so that a generator that has gone dull is seen.
#[derive(Debug, Default)]
struct Tally {
    compared: usize,
    changed: usize,
    denied: usize,
    warned: usize,
    left_out: usize,
    /// Violations that the API server was to find as well, by kind.
    kinds: BTreeMap<String, usize>,
    differences: Vec<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn native_policies_have_the_same_verdicts_as_nodegate() {
    let cluster = exclusive();
    let _removed = Removed(cluster.plane);
    let writer = Writer::new(cluster.plane).await;
    let mut random = Random::new(20_261_121);
    let mut sets: Vec<Exported> = (0..SETS).map(|number| Exported::draw(&mut random, number)).collect();
    sets.push(Exported::of(directed::policy(), "native-directed-"));
    apply(&writer, &sets).await;

    let mut tally = Tally::default();
    for exported in &sets[..sets.len() - 1] {
        tally.left_out += exported.left_out.len();
        let hidden = Hidden::of(&exported.spec, &exported.left_out);
        for number in 0..NODES {
            let name = format!(
                "{}{}",
                exported.prefix,
                ["n1", "gpu-7", "yeezyai", "x", "gpu-8", "y"][usize::try_from(number).unwrap()]
            );
            live(&writer, exported, &hidden, &name, &mut random, &mut tally).await;
        }
    }
    let exported = sets.last().unwrap();
    let hidden = Hidden::of(&exported.spec, &exported.left_out);
    assert!(exported.left_out.is_empty(), "{:?}", exported.left_out);
    let (name, who) = (format!("{}n", exported.prefix), Who::admin());
    let mut stored = None;
    for (number, patch) in directed::writes(&name).iter().enumerate() {
        let step = Step { who: &who, create: number == 0, status: false, patch, name: &name };
        compare(&writer, exported, &hidden, &step, &mut stored, &mut tally).await;
    }
    let _ = writer.delete(&name).await;
    let Tally { compared, changed, denied, warned, left_out, kinds, differences } = tally;
    println!(
        "{compared} writes compared: {changed} changed, {denied} denied, {warned} warned; {left_out} left out; {kinds:?}"
    );
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n\n"));
    assert!(compared > 500 && changed > 100 && denied > 50 && warned > 20, "the generator has gone dull");
    for kind in ["Reserved", "Immutable", "Required", "Allowed", "Naming", "Dependency", "Expression"] {
        assert!(kinds.get(kind).is_some_and(|count| *count >= 10), "too few of {kind}: {kinds:?}");
    }
}

/// One node's life: its CREATE, and writes by anybody.
async fn live(
    writer: &Writer,
    exported: &Exported,
    hidden: &Hidden,
    name: &str,
    random: &mut Random,
    tally: &mut Tally,
) {
    let node = generator::node(random, name);
    let who = Who::creator(random, name);
    let mut stored = None;
    compare(
        writer,
        exported,
        hidden,
        &Step { who: &who, create: true, status: false, patch: &node, name },
        &mut stored,
        tally,
    )
    .await;
    for _ in 0..UPDATES {
        let Some(old) = &stored else { return };
        let who = Who::any(random, name);
        let (status, patch) = generator::patch(random, old, who.is_kubelet());
        compare(
            writer,
            exported,
            hidden,
            &Step { who: &who, create: false, status, patch: &patch, name },
            &mut stored,
            tally,
        )
        .await;
    }
    let _ = writer.delete(name).await;
}

/// One write.
struct Step<'s> {
    who: &'s Who,
    create: bool,
    status: bool,
    /// The node to create, or a merge patch.
    patch: &'s Value,
    name: &'s str,
}

async fn compare(
    writer: &Writer,
    exported: &Exported,
    hidden: &Hidden,
    step: &Step<'_>,
    stored: &mut Option<Value>,
    tally: &mut Tally,
) {
    let exemptions = Exemptions {
        self_user: Some(SELF_USER.to_owned()),
        break_glass_groups: Identities::parse([BREAK_GLASS]).unwrap(),
    };
    let expected = Expected::of(&exported.set, &exemptions, step, stored.as_ref());
    let outcome = if step.create {
        writer.create(step.patch, step.who).await
    } else {
        writer.merge(step.name, step.status, step.patch, step.who).await
    };
    tally.compared += 1;
    tally.changed += usize::from(expected.changed);
    tally.denied += usize::from(!expected.denied_by.is_empty());
    tally.warned += usize::from(!expected.warned.is_empty());
    for kind in expected.kinds(hidden) {
        *tally.kinds.entry(kind).or_default() += 1;
    }
    if let Some(difference) = expected.difference(&outcome, hidden) {
        let Outcome { code, .. } = outcome;
        tally.differences.push(format!(
            "{difference}\n{code} for {:?}, status {}, of {}\npatch {}\nstored {}\npolicy {:#}\nleft out {:?}",
            step.who,
            step.status,
            step.name,
            step.patch,
            stored.as_ref().map_or(Value::Null, expected::essence),
            exported.spec,
            exported.left_out,
        ));
    }
    if outcome.code < 300 {
        until_cached(&writer.0, &outcome.body).await;
        *stored = Some(outcome.body);
    }
}

/// Creates all objects, and waits until those made last act: the API server takes them up in their order.
async fn apply(writer: &Writer, sets: &[Exported]) {
    let last = Exported::last();
    for exported in sets.iter().chain([&last]) {
        for object in &exported.objects {
            let outcome = writer.post_policy(object).await;
            assert!(outcome.code < 300, "{} of {object:#} for {:#}", outcome.body, exported.spec);
        }
    }
    eventually("the policies are in force", async || acts(writer, &last).await).await;
}

/// Whether the policies of [`Exported::last`] act.
async fn acts(writer: &Writer, last: &Exported) -> Result<(), String> {
    let probe = |label: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("{}probe", last.prefix), "labels": {label: "x"}}});
    let denied = writer.create_dry_run(&probe("probe.test/deny")).await;
    let warned = writer.create_dry_run(&probe("probe.test/warn")).await;
    let given = warned.body["metadata"]["labels"].get("probe.test/given").is_some();
    let acting = denied.code == 403 && given && !warned.warnings.is_empty();
    if acting { Ok(()) } else { Err(format!("{denied:?} {warned:?}")) }
}

/// The kinds of native policies and of what puts them in force.
const KINDS: &str = "mutatingadmissionpolicies,mutatingadmissionpolicybindings,validatingadmissionpolicies,validatingadmissionpolicybindings";

/// Takes all native policies away at the end, however the test ends: they stay when nodegate is gone.
pub(super) struct Removed(pub(super) &'static ControlPlane);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["delete", KINDS, "-l", "app.kubernetes.io/managed-by=nodegate", "--wait=false"], None);
    }
}
