//! `MutatingAdmissionPolicy`: the values that rules assign, as far as the request may carry them.
//!
//! All mutations are JSON patches: `ApplyConfiguration` may not set taints, and merges by keys that nodes violate. Rules
//! that share a key or read each other's keys are in one policy, because the order of policies is undefined.

use serde_json::{Value as Json, json};

use crate::keys::Field;
use crate::keys::restriction::is_restricted;
use crate::native::objects::{NativeOptions, match_condition, match_constraints, not_self, with_binding};
use crate::native::terms::formula::{Formula, in_keys, is_left_at_join, is_own, list};
use crate::native::terms::request::CAN_MATTER;
use crate::native::terms::selection::{AssignedKey, Selection};
use crate::native::terms::variables::Variables;

/// Maximum number of rules in one policy; only rules that belong together may exceed it.
const RULES_MAX: usize = 200;

/// All mutating policies with their bindings.
pub(super) fn policies(selection: &Selection<'_>, options: &NativeOptions) -> Vec<Json> {
    let (alone, together): (Vec<usize>, Vec<usize>) = selection.exported().partition(|at| selection.stands_alone(*at));
    let mut objects = Vec::new();
    for (number, rules) in parts(selection, &together).into_iter().enumerate() {
        let name = if number == 0 { options.name.clone() } else { format!("{}-{number}", options.name) };
        objects.extend(policy(selection, options, &name, &rules, number == 0));
    }
    for (number, at) in alone.into_iter().enumerate() {
        objects.extend(policy(selection, options, &format!("{}-expression-{number}", options.name), &[at], false));
    }
    objects
}

/// The rules of each policy. The first policy also resets keys that kubelets may not set, so it has the rules for
/// protected labels.
fn parts(selection: &Selection<'_>, rules: &[usize]) -> Vec<Vec<usize>> {
    let mut first = Vec::new();
    let mut parts: Vec<Vec<usize>> = Vec::new();
    for group in groups(selection, rules) {
        let guards = |at: &usize| {
            selection.assigned_keys(*at).any(|(field, key)| field == Field::Label && selection.set().is_protected(&key))
        };
        if group.iter().any(guards) {
            first.extend(group);
            continue;
        }
        match parts.last_mut().filter(|part| part.len() + group.len() <= RULES_MAX) {
            Some(part) => part.extend(group),
            None => parts.push(group),
        }
    }
    match parts.first_mut().filter(|part| part.len() + first.len() <= RULES_MAX) {
        Some(part) => part.extend(first),
        None => parts.insert(0, first),
    }
    parts.iter_mut().for_each(|part| part.sort_unstable());
    parts
}

/// Rules that share keys or read each other's.
fn groups(selection: &Selection<'_>, rules: &[usize]) -> Vec<Vec<usize>> {
    let mut sets = petgraph::unionfind::UnionFind::<usize>::new(rules.iter().max().map_or(0, |most| most + 1));
    for at in rules {
        for other in selection.reads_from(*at) {
            sets.union(*at, other);
        }
        for assigned in selection.assigned_keys(*at) {
            for other in selection.writers_of(&assigned).into_iter().filter(|other| !selection.stands_alone(*other)) {
                sets.union(*at, other);
            }
        }
    }
    let mut found: Vec<(usize, Vec<usize>)> = Vec::new();
    for at in rules {
        let root = sets.find(*at);
        match found.iter_mut().find(|(of, _)| *of == root) {
            Some((_, group)) => group.push(*at),
            None => found.push((root, vec![*at])),
        }
    }
    found.into_iter().map(|(_, group)| group).collect()
}

fn policy(
    selection: &Selection<'_>,
    options: &NativeOptions,
    name: &str,
    rules: &[usize],
    corrects_kubelets: bool,
) -> [Json; 2] {
    let mut variables = Variables::new(&options.pending_taints);
    let mut evaluated: Vec<usize> =
        rules.iter().flat_map(|at| selection.reads_from(*at)).chain(rules.iter().copied()).collect();
    evaluated.sort_unstable();
    evaluated.dedup();
    variables.add_rules(selection, &evaluated);
    let mut assigned_keys: Vec<AssignedKey> = rules.iter().flat_map(|at| selection.assigned_keys(*at)).collect();
    assigned_keys.sort();
    assigned_keys.dedup();
    variables.add_desired(selection, &assigned_keys);
    let mut operations = Vec::new();
    entries(selection, Field::Label, &assigned_keys, corrects_kubelets, &mut variables, &mut operations);
    entries(selection, Field::Annotation, &assigned_keys, corrects_kubelets, &mut variables, &mut operations);
    if assigned_keys.iter().any(|assigned| assigned.0 == Field::Taint) {
        variables.add("newTaints", NEW_TAINTS);
        operations.push(PATCH_TAINTS.to_owned());
    }
    let expression = operations.join(" +\n");
    let conditions = [Some(match_condition("can-matter", CAN_MATTER)), not_self(options)];
    let spec = json!({
        // A missed mutation can be repaired later, but a refused node cannot join.
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": match_constraints(&["nodes"]),
        "matchConditions": conditions.into_iter().flatten().collect::<Vec<_>>(),
        "variables": variables.needed_by(&expression),
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
    });
    with_binding("MutatingAdmissionPolicy", name, spec, None)
}

/// Labels or annotations: variables and operations.
fn entries(
    selection: &Selection<'_>,
    field: Field,
    assigned_keys: &[AssignedKey],
    corrects_kubelets: bool,
    variables: &mut Variables,
    operations: &mut Vec<String>,
) {
    let (plural, title) = if field == Field::Label { ("labels", "Labels") } else { ("annotations", "Annotations") };
    let keys: Vec<&str> =
        assigned_keys.iter().filter(|assigned| assigned.0 == field).map(|(_, key)| key.as_str()).collect();
    if keys.is_empty() && !corrects_kubelets {
        return;
    }
    let (now, before) = (format!("variables.{plural}"), format!("variables.old{title}"));
    let (new, desired) = (format!("variables.new{title}"), format!("variables.desired{title}"));
    let label_keys = || keys.iter().copied().filter(|_| field == Field::Label);
    let left_out = |when: &str, keys: Vec<&str>| match keys.as_slice() {
        [] => Formula::Always,
        keys => Formula::When(format!("!({when} && k in {})", list(keys.iter().copied()))),
    };
    let kept = |key: &&str| selection.set().is_protected(key) || selection.set().names_persisted(key);
    let carried = Formula::all([
        // NodeRestriction checks this patch as the kubelet's own change.
        left_out("variables.kubelet", label_keys().filter(|key| is_restricted(key)).collect()),
        // A kubelet's UPDATE keeps the stored values of guarded labels.
        left_out("variables.kubelet && !variables.create", label_keys().filter(kept).collect()),
    ]);
    let differs = Formula::When(format!("!(k in {now} && {now}[k] == {desired}[k])"));
    variables.add(format!("new{title}"), format!("{desired}.filter(k, {})", Formula::all([differs, carried]).text()));
    let path = format!("\"/metadata/{plural}/\" + jsonpatch.escapeKey(k)");
    let mut lists = vec![new.clone()];
    let mut patches = vec![format!("{new}.map(k, JSONPatch{{op: \"add\", path: {path}, value: {desired}[k]}})")];
    if corrects_kubelets {
        add_corrected(selection, field, (plural, title), variables);
        let (stripped, lost) = (format!("variables.stripped{title}"), format!("variables.lost{title}"));
        patches.push(format!(
            "{stripped}.map(k, k in {before} ? JSONPatch{{op: \"add\", path: {path}, value: {before}[k]}} : JSONPatch{{op: \"remove\", path: {path}}})"
        ));
        patches.push(format!("{lost}.map(k, JSONPatch{{op: \"add\", path: {path}, value: {before}[k]}})"));
        lists.push(lost);
    }
    let any: Vec<String> = lists.iter().map(|list| format!("{list}.size() > 0")).collect();
    operations.push(format!(
        "(!has(object.metadata.{plural}) && ({}) ? [JSONPatch{{op: \"add\", path: \"/metadata/{plural}\", value: {{}}}}] : [])",
        any.join(" || ")
    ));
    operations.append(&mut patches);
}

/// Adds the variables with the keys that a kubelet set or removed although it may not.
fn add_corrected(selection: &Selection<'_>, field: Field, (plural, title): (&str, &str), variables: &mut Variables) {
    let (now, before) = (format!("variables.{plural}"), format!("variables.old{title}"));
    let (new, desired) = (format!("variables.new{title}"), format!("variables.desired{title}"));
    let guarded = match field {
        Field::Label => Formula::any([is_own("k"), in_keys("k", selection.set().protected())]).text(),
        _ => Formula::all([is_own("k"), is_left_at_join("k").not()]).text(),
    };
    variables.add(
        format!("stripped{title}"),
        format!(
            "variables.kubelet ? {now}.filter(k, {guarded} && !(k in {before} && {before}[k] == {now}[k]) && !(variables.create && k in {desired} && {desired}[k] == {now}[k]) && !(k in {new})) : []"
        ),
    );
    variables.add(
        format!("lost{title}"),
        format!("variables.kubelet ? {before}.filter(k, {guarded} && !(k in {now})) : []"),
    );
}

/// A kubelet may not change the taints of an existing node.
const NEW_TAINTS: &str = r#"variables.kubelet && !variables.create ? [] : variables.desiredTaints.filter(d, !variables.taints.exists(t, t.key == d.key && t.effect == d.effect && t.?value.orValue("") == d.value))"#;

/// Only what is new, each taint for itself: from Kubernetes 1.37 a patch with one of the object's own taints in it fails, because
/// those have a type, which has no JSON. A list of `Object…{}` initialisers panics the request in 1.36.
const PATCH_TAINTS: &str = r#"(!has(object.spec.taints) && variables.newTaints.size() > 0 ? [JSONPatch{op: "add", path: "/spec/taints", value: []}] : []) +
lists.range(variables.taints.size()).filter(i, variables.newTaints.exists(n, n.key == variables.taints[i].key && n.effect == variables.taints[i].effect)).map(i, JSONPatch{op: "replace", path: "/spec/taints/" + string(i), value: variables.newTaints.filter(n, n.key == variables.taints[i].key && n.effect == variables.taints[i].effect)[0]}) +
variables.newTaints.filter(n, !variables.taints.exists(t, t.key == n.key && t.effect == n.effect)).map(n, JSONPatch{op: "add", path: "/spec/taints/-", value: n})"#;
