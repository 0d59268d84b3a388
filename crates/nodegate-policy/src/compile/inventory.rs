//! Compiles `inventory` to rules that assign the labels of an answer.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::texts::duration;
use super::{Draft, Faults, answers};
use crate::api::names::{cut_name, is_dns_subdomain};
use crate::api::policy::InventorySpec;
use crate::api::problem::Problem;
use crate::api::source::FieldPath;
use crate::facts::inventory::InventoryQuestion;
use crate::keys::pattern::KeySet;
use crate::set::inventory::{Inventory, InventoryUrl, givable_label};
use crate::set::matcher::Matcher;
use crate::set::rule::{Assignments, REMOVE_AFTER, Rule, RuleId, Strength};

/// How often nodegate sends the request for a node if `refresh` is omitted.
const REFRESH: Duration = Duration::from_secs(300);
/// The shortest `refresh`.
const REFRESH_MIN: Duration = Duration::from_secs(1);

/// Compiles the inventories of a document.
pub(super) fn compile(document: usize, drafts: &mut Vec<Draft>, faults: &mut Faults<'_>) {
    let owner = faults.document;
    let policy: Arc<str> = owner.name.as_str().into();
    let mut names = HashSet::new();
    for (index, spec) in owner.spec.inventory.iter().enumerate() {
        let path = FieldPath::root().key("spec").key("inventory").index(index);
        if let Some(fault) = name_fault(spec, &mut names) {
            faults.at(&path.key("name"), fault);
        }
        let Some(inventory) = compile_one(spec, &policy, &path, faults) else { continue };
        let trust_kubelet = inventory.trusts_kubelet;
        let rule = Rule {
            id: RuleId { policy: policy.clone(), rule: format!("inventory:{}", cut_name(&spec.name)).into() },
            strength: Strength::Inventory,
            priority: 0,
            rank: 0,
            matcher: Matcher::default(),
            assigns: Assignments { inventory: Some(Arc::new(inventory)), ..Assignments::default() },
            trust_kubelet,
            evict: false,
            remove_after: REMOVE_AFTER,
        };
        drafts.push(Draft { rule, document, path });
    }
}

/// The name is also that of a directory of credentials and of a metric's label.
fn name_fault<'s>(spec: &'s InventorySpec, names: &mut HashSet<&'s str>) -> Option<Problem> {
    let name = spec.name.as_str();
    if name.is_empty() {
        Some(Problem::new("the name is empty", "give each inventory a unique name"))
    } else if !names.insert(name) {
        let what = format!("another inventory of this policy is named {name:?}");
        Some(Problem::new(what, "give each inventory a unique name"))
    } else if !is_dns_subdomain(name) {
        let what = format!("{name:?} is not a DNS subdomain");
        Some(Problem::new(what, "use lower-case letters, digits, '-' and '.', such as cmdb"))
    } else {
        None
    }
}

fn compile_one(
    spec: &InventorySpec,
    policy: &Arc<str>,
    path: &FieldPath,
    faults: &mut Faults<'_>,
) -> Option<Inventory> {
    let InventorySpec { name, url, refresh, allow, require, answer, trust_kubelet } = spec;
    let url = faults.check(&path.key("url"), InventoryUrl::parse(url));
    let refresh = refresh.as_ref().and_then(|text| {
        let refresh = faults.check(&path.key("refresh"), duration(text))?;
        if refresh < REFRESH_MIN {
            faults.at(&path.key("refresh"), Problem::new(format!("{text:?} is shorter than 1s"), "write a longer one"));
        }
        Some(refresh)
    });
    if allow.is_empty() {
        let what = "the list is empty, so the inventory could not set any label";
        faults.at(&path.key("allow"), Problem::new(what, "add keys or prefix/*"));
    }
    for (index, key) in allow.iter().enumerate() {
        let path = path.key("allow").index(index);
        if key == "*" {
            let what = "\"*\" lets the inventory set every label, also those that others rely on";
            faults.at(&path, Problem::new(what, "list keys, or prefixes such as rack.example.com/*"));
        } else if !key.contains('*') {
            faults.check(&path, givable_label(key));
        }
    }
    let allow = KeySet::compile(allow.iter().map(String::as_str), |index, message| {
        if spec.allow[index].contains('*') {
            faults.at(&path.key("allow").index(index), message);
        }
    });
    let is_batch = url.as_ref().is_some_and(InventoryUrl::is_batch);
    let form = answer.as_ref().map(|spec| answers::compile(spec, is_batch, &allow, &path.key("answer"), faults));
    let trusts_kubelet = trust_kubelet.unwrap_or_default();
    if trusts_kubelet && answer.as_ref().is_none_or(|answer| answer.machine.is_none()) {
        let what = "items are about nodes by name, which no kubelet chooses";
        faults.at(&path.key("trustKubelet"), Problem::new(what, "remove it; it is for answer.machine"));
    }
    let url = url?;
    // What changes how answers are read changes what they say.
    let asked = answer.as_ref().and_then(|spec| serde_json::to_string(spec).ok()).unwrap_or_default();
    Some(Inventory {
        id: format!("{policy}/{name}").into(),
        policy: policy.clone(),
        name: name.as_str().into(),
        refresh: refresh.unwrap_or(REFRESH),
        require: require.unwrap_or_default(),
        trusts_kubelet,
        question: InventoryQuestion::new(url.as_str(), allow.written(), &asked),
        form: form.map(Arc::new),
        url,
        allow,
    })
}
