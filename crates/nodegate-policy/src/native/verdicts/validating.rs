//! `ValidatingAdmissionPolicy`: what may change, and by whom; one policy per mode.
//!
//! Values that a rule assigns are never counted as violations of the requester.

use serde_json::{Value as Json, json};

use crate::api::policy::EntryMode;
use crate::keys::Field;
use crate::keys::control_plane;
use crate::keys::restriction::{KUBELET_ANNOTATIONS, RECONCILED_LABELS};
use crate::native::objects::{
    FailurePolicy, LeftOut, NativeOptions, match_condition, match_constraints, not_self, with_binding,
};
use crate::native::terms::formula::{Formula, in_keys, is_left_at_join, is_own, list, quote};
use crate::native::terms::request::{CAN_VIOLATE, KUBELET};
use crate::native::terms::selection::{AssignedKey, Selection, rule_variable, value};
use crate::native::terms::variables::Variables;
use crate::native::verdicts::constraints;
use crate::native::verdicts::entry::EntryContext;
use crate::native::verdicts::reserved;
use crate::native::verdicts::validation::{FIELDS, Validation, describe, now, taint_in_keys};
use crate::set::governance::KeyScope;

/// All validating policies with their bindings.
pub(in crate::native) fn policies(
    selection: &Selection<'_>,
    options: &NativeOptions,
    left_out: &mut Vec<LeftOut>,
) -> Vec<Json> {
    let mut variables = Variables::new(&options.pending_taints);
    for (name, of) in [("taintValues", "variables.taints"), ("oldTaintValues", "variables.oldTaints")] {
        let map = format!("{of}.transformMapEntry(i, t, {{t.key + \":\" + t.effect: t.?value.orValue(\"\")}})");
        variables.add(name, map);
    }
    add_assigned(selection, &mut variables);
    for (field, title) in FIELDS {
        add_changes(selection, field, title, &mut variables);
    }
    let mut validations = protect(selection, &mut variables);
    let judging = EntryContext { selection, options };
    validations.extend(reserved::validations(judging, &mut variables, left_out));
    validations.extend(constraints::validations(judging, &mut variables, left_out));
    let modes = [
        (EntryMode::Enforce, "enforce", "Deny"),
        (EntryMode::Warn, "warn", "Warn"),
        (EntryMode::Audit, "audit", "Audit"),
    ];
    let mut made = Vec::new();
    for (mode, suffix, action) in modes {
        let of_mode = validations.iter().filter(|validation| validation.mode == mode);
        let (alone, together): (Vec<&Validation>, Vec<&Validation>) = of_mode.partition(|validation| validation.alone);
        let name = format!("{}-{suffix}", options.name);
        if !together.is_empty() {
            made.extend(policy(&together, variables.clone(), options, &name, action));
        }
        // A failed evaluation must not deny the write, whatever the failure policy of the others is.
        let ignore = NativeOptions { failure_policy: FailurePolicy::Ignore, ..options.clone() };
        for (number, validation) in alone.into_iter().enumerate() {
            let name = format!("{name}-expression-{number}");
            made.extend(policy(&[validation], variables.clone(), &ignore, &name, action));
        }
    }
    made
}

fn policy(
    validations: &[&Validation],
    variables: Variables,
    options: &NativeOptions,
    name: &str,
    action: &str,
) -> [Json; 2] {
    let texts: Vec<&str> = validations.iter().flat_map(|one| [one.expression.as_str(), one.message.as_str()]).collect();
    let variables = variables.needed_by(&texts.join("\n"));
    let validations: Vec<Json> = validations
        .iter()
        .map(|one| {
            json!({"expression": one.expression, "messageExpression": one.message, "message": one.fallback, "reason": "Forbidden"})
        })
        .collect();
    // A restarted kubelet sends CREATE again; if it were denied, the node could not rejoin.
    let not_joining =
        match_condition("not-a-kubelet-joining", format!(r#"!(request.operation == "CREATE" && {KUBELET})"#));
    let conditions = [Some(match_condition("can-violate", CAN_VIOLATE)), Some(not_joining), not_self(options)];
    let spec = json!({
        "failurePolicy": options.failure_policy,
        "matchConstraints": match_constraints(&["nodes", "nodes/status"]),
        "matchConditions": conditions.into_iter().flatten().collect::<Vec<_>>(),
        "variables": variables,
        "validations": validations,
    });
    with_binding("ValidatingAdmissionPolicy", name, spec, Some(action))
}

/// Whether any entry may judge this key.
fn is_governed(selection: &Selection<'_>, (field, key): &AssignedKey) -> bool {
    let set = selection.set();
    let plain = if *field == Field::Taint { key.rsplit_once(':').map_or(key.as_str(), |(key, _)| key) } else { key };
    let in_place = |place: &KeyScope<'_>| reserved::contains(*place, plain);
    (*field == Field::Label && set.is_protected(key))
        || set.governance().places(*field).iter().any(|(place, _)| in_place(place))
        || set
            .governance()
            .constraints()
            .iter()
            .any(|constraint_entry| constraints::is_about(constraint_entry, *field, plain))
}

/// Adds the variables with the values that exported rules assign to governed keys.
fn add_assigned(selection: &Selection<'_>, variables: &mut Variables) {
    let mut assigned_keys: Vec<AssignedKey> =
        selection.exported().flat_map(|at| selection.assigned_keys(at).collect::<Vec<_>>()).collect();
    assigned_keys.sort();
    assigned_keys.dedup();
    assigned_keys.retain(|assigned| is_governed(selection, assigned));
    let writers = assigned_keys.iter().flat_map(|assigned| selection.writers_of(assigned));
    let mut rules: Vec<usize> = writers.flat_map(|at| selection.reads_from(at).into_iter().chain([at])).collect();
    rules.sort_unstable();
    rules.dedup();
    variables.add_rules(selection, &rules);
    // Rules whose condition may fail are evaluated only if the write has their key and value.
    assigned_keys.retain(|assigned| !selection.writers_of(assigned).iter().any(|at| selection.stands_alone(*at)));
    variables.add_desired(selection, &assigned_keys);
    variables.add(
        "desiredTaintValues",
        "variables.desiredTaints.transformMapEntry(i, d, {d.key + \":\" + d.effect: d.value})",
    );
}

/// Adds the variables with the changed keys of a field, without those that have an assigned value.
fn add_changes(selection: &Selection<'_>, field: Field, title: &str, variables: &mut Variables) {
    let (now, before) = (now(field), format!("variables.old{title}"));
    let desired = format!("variables.desired{title}");
    let given = Formula::When(format!("(k in {desired} && {desired}[k] == {now}[k])"));
    let given = Formula::any([given].into_iter().chain(may_be_assigned(selection, field)));
    let given = Formula::all([Formula::When(format!("k in {now}")), given]);
    let reconciled_if = |when: &str| match field {
        Field::Label => Formula::When(format!("({when} && k in {})", list(RECONCILED_LABELS))),
        Field::Annotation => Formula::When(format!("({when} && k in {})", list(KUBELET_ANNOTATIONS))),
        Field::Taint => Formula::Never,
    };
    let reconciled = reconciled_if("variables.kubelet");
    let mark = if field == Field::Annotation { is_left_at_join("k") } else { Formula::Never };
    let counts = Formula::any([given, reconciled, by_control_plane(field), mark]).not().text();
    variables.add(
        format!("changed{title}"),
        format!(
            "({now}.filter(k, !(k in {before} && {before}[k] == {now}[k])) + {before}.filter(k, !(k in {now}))).filter(k, {counts})"
        ),
    );
    let guarded = match field {
        Field::Taint => None,
        _ => Some(Formula::all([Formula::When("variables.kubelet".to_owned()), guarded(selection, field)])),
    };
    let open = guarded.clone().map_or(Formula::Always, Formula::not);
    // Whoever creates a Node may give it the keys that its kubelet maintains, and a cloud controller adds its own when it initializes it.
    let by_cloud = match field {
        Field::Label => Formula::When(format!(
            "(variables.initial && !(k in {before}) && k in {})",
            list(control_plane::GIVEN_BY_CLOUDS)
        )),
        _ => Formula::Never,
    };
    let open = Formula::all([open, reconciled_if("variables.create").not(), by_cloud.not()]).text();
    variables.add(format!("governed{title}"), format!("variables.changed{title}.filter(k, {open})"));
    if let Some(guarded) = guarded {
        variables.add(format!("asserted{title}"), format!("variables.changed{title}.filter(k, {})", guarded.text()));
    }
}

/// Whether the change of the key in `k` is the control plane's own work, or the API server's part of a CREATE.
fn by_control_plane(field: Field) -> Formula {
    let (keys, namespaces) = control_plane::written(field);
    let key = if field == Field::Taint { r#"k.split(":")[0]"# } else { "k" };
    let named = Formula::When(format!("{key} in {}", list(keys.iter().copied())));
    let below = namespaces.iter().map(|namespace| Formula::When(format!("k.startsWith({})", quote(namespace))));
    let written = Formula::any([named].into_iter().chain(below));
    let by = Formula::When("variables.controlPlane".to_owned());
    let new = Formula::When(format!("(variables.create && k == {})", quote(control_plane::NEW_NODE_TAINT)));
    let new = if field == Field::Taint { new } else { Formula::Never };
    Formula::any([Formula::all([by, written]), new])
}

/// Whether a kubelet may not set the key in `k`.
fn guarded(selection: &Selection<'_>, field: Field) -> Formula {
    match field {
        Field::Label => Formula::any([is_own("k"), in_keys("k", selection.set().protected())]),
        _ => is_own("k"),
    }
}

/// Values that may be assigned by rules that are not exported, or whose condition may fail.
fn may_be_assigned(selection: &Selection<'_>, field: Field) -> Vec<Formula> {
    let mut ways = Vec::new();
    for (at, rule) in selection.set().rules().iter().enumerate() {
        let exported: Vec<AssignedKey> = selection.assigned_keys(at).collect();
        for assigned in crate::native::terms::selection::assigned_keys(rule)
            .filter(|assigned| assigned.0 == field && is_governed(selection, assigned))
        {
            let is = |when: &str| {
                let (key, value) = (quote(&assigned.1), quote(value(rule, &assigned)));
                Formula::When(format!("(k == {key} && {}[k] == {value}{when})", now(field)))
            };
            if !exported.contains(&assigned) {
                ways.push(is(""));
            } else if selection.stands_alone(at) {
                ways.push(is(&format!(" && {}", rule_variable(selection, at))));
            }
        }
        if field == Field::Label {
            let keys = rule.assigns.label_expressions.iter().map(|(key, _)| quote(key.as_str()));
            let copied = rule.assigns.migration.iter().flat_map(|migration| migration.written());
            let keys = keys.chain(copied.map(|key| quote(key.as_str())));
            ways.extend(keys.map(|key| Formula::When(format!("(k == {key})"))));
            ways.extend(rule.assigns.label_map.as_deref().into_iter().map(|(keys, _)| in_keys("k", keys)));
        }
        if let Some(inventory) = rule.assigns.inventory.as_ref().filter(|_| field == Field::Label) {
            ways.push(in_keys("k", &inventory.allow));
        }
        if let Some(saved) = &rule.assigns.saved {
            let keys = match field {
                Field::Label => in_keys("k", &saved.labels),
                Field::Annotation => Formula::Never,
                Field::Taint => taint_in_keys(&saved.taints),
            };
            ways.push(Formula::all([Formula::When("variables.initial".to_owned()), keys]));
        }
    }
    ways
}

/// The validations against kubelets that change keys that they may not change.
fn protect(selection: &Selection<'_>, variables: &mut Variables) -> Vec<Validation> {
    let mut validations = Vec::new();
    for (field, title) in &FIELDS[..2] {
        let name = format!("own{title}");
        variables.add(&name, format!("variables.asserted{title}.filter(k, {})", is_own("k").text()));
        validations.push(assertion(*field, title, &name, "nodegate", "own-keys"));
    }
    let mut earlier: Vec<Formula> = vec![is_own("k")];
    for (number, document) in selection.set().governance().documents().iter().enumerate() {
        let keys = in_keys("k", &document.protect);
        if keys == Formula::Never {
            continue;
        }
        let name = format!("protected{number}");
        let first = Formula::any(earlier.iter().cloned()).not();
        let these = Formula::all([first, keys.clone()]).text();
        variables.add(&name, format!("variables.assertedLabels.filter(k, {these})"));
        earlier.push(keys);
        validations.push(assertion(
            Field::Label,
            "Labels",
            &name,
            &document.protect_id.policy,
            &document.protect_id.rule,
        ));
    }
    validations
}

fn assertion(field: Field, title: &str, name: &str, policy: &str, rule: &str) -> Validation {
    let variable = format!("variables.{name}");
    let reason =
        format!(" by a kubelet: policy {policy} protects it ({rule}); an administrator or a policy rule may set it");
    Validation {
        mode: EntryMode::Enforce,
        alone: false,
        expression: format!("{variable}.size() == 0"),
        message: format!("\"nodegate: \" + {} + {}", describe(field, title, &variable), quote(&reason)),
        fallback: format!("nodegate: this {field} may not be changed{reason}"),
    }
}
