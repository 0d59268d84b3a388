//! Finds subjects and flags that open more than their authors probably mean, and those that match nobody.

use super::places::{entries, governance_path, spec_path};
use super::{Lint, LintName};
use crate::api::document::PolicyDocument;
use crate::api::policy::{ConditionsSpec, GovernedField, MatchSpec, ReservedSpec, SubjectsSpec};
use crate::api::problem::Problem;
use crate::api::schema::nearest;
use crate::api::source::FieldPath;
use crate::keys::control_plane;

/// The groups that the API server and its components know (`k8s.io/apiserver/pkg/authentication/user`,
/// `pkg/apis/rbac/bootstrappolicy`).
const SYSTEM_GROUPS: [&str; 7] = [
    "system:masters",
    "system:nodes",
    "system:authenticated",
    "system:unauthenticated",
    "system:serviceaccounts",
    "system:bootstrappers",
    "system:monitoring",
];

/// What a subject is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opening {
    /// It may write reserved keys, or override.
    Opens,
    /// It is exempt from one entry.
    Exempts,
}

/// Subjects of which an author probably meant fewer, or others, reserved keys that nobody may write, and rules that evict pods
/// from every node.
pub(super) fn openings(document: &PolicyDocument, lints: &mut Vec<Lint>) {
    let mut add = |name: LintName, path: &FieldPath, what: String, help: &str| {
        lints.push(Lint { name, fault: document.fault(path, Problem::new(what, help)) });
    };
    for (path, opening, subjects) in subjects(document) {
        for (name, path, what, help) in of_subjects(&path, opening, subjects) {
            add(name, &path, what, &help);
        }
    }
    let governance = document.spec.governance.iter();
    for (at, reserved) in governance.flat_map(|governance| &governance.reserved).enumerate() {
        if reserved.allow.as_ref().is_none_or(|allow| *allow == SubjectsSpec::default()) {
            let what = "nobody but nodegate and the control plane may write these keys, because \"allow\" names nobody"
                .to_owned();
            let help = "name who may write them in allow, for example allow: {groups: [platform-team]}";
            add(LintName::NobodyAllowed, &governance_path().key("reserved").index(at), what, help);
        }
        if let Some(key) = covered(reserved).filter(|_| !admits_control_plane(reserved.allow.as_ref())) {
            let what = format!(
                "the control plane writes {key:?}, and this entry does not allow it to; nodegate lets it pass all the same"
            );
            let help = "if you mean everybody else, add allow: {serviceAccounts: [\"kube-system:*\"], users: [system:kube-controller-manager, system:cloud-controller-manager]}";
            add(LintName::CoversControlPlane, &governance_path().key("reserved").index(at), what, help);
        }
    }
    for (at, rule) in document.spec.rules.iter().enumerate() {
        if rule.evict == Some(true) && is_every_node(rule.match_.as_ref()) {
            let what = format!("rule {:?} evicts pods from every node", rule.name);
            let help = "give it a match, or leave out evict: then its NoExecute taints are only set on nodes that join";
            add(LintName::EvictsEverywhere, &spec_path().key("rules").index(at).key("evict"), what, help);
        }
    }
}

/// Whether a match obviously holds for every node.
fn is_every_node(matching: Option<&MatchSpec>) -> bool {
    let Some(MatchSpec { conditions, any_of: None }) = matching else { return matching.is_none() };
    let others = ConditionsSpec { names: None, ..conditions.clone() };
    let names = conditions.names.as_ref().is_none_or(|names| names.iter().any(|name| name == "*"));
    names && others == ConditionsSpec::default()
}

/// A key that the entry reserves and the control plane writes.
fn covered(reserved: &ReservedSpec) -> Option<&'static str> {
    let fields = reserved.of.as_deref().unwrap_or(&[GovernedField::Taints, GovernedField::Labels]);
    let covers = |key: &str| {
        let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
        let is_of = |namespace: &String| match namespace.strip_prefix('*') {
            Some(parent) => prefix.ends_with(parent),
            None => prefix == namespace,
        };
        reserved.keys.iter().any(|reserved| reserved == key) || reserved.namespaces.iter().any(is_of)
    };
    fields.iter().find_map(|of| {
        let (keys, namespaces) = control_plane::written(of.into());
        keys.iter().chain(namespaces).copied().find(|key| covers(key))
    })
}

/// Whether any part of the control plane is among the subjects.
fn admits_control_plane(allow: Option<&SubjectsSpec>) -> bool {
    let Some(SubjectsSpec { users, groups, service_accounts }) = allow else { return false };
    let elsewhere = || control_plane::ELSEWHERE.iter().filter_map(|user| user.strip_prefix("system:serviceaccount:"));
    users.iter().any(|user| {
        user.starts_with(control_plane::ACCOUNTS)
            || [&control_plane::USERS[..], &control_plane::ELSEWHERE]
                .concat()
                .iter()
                .any(|known| covers_all(user, &[known]))
    }) || groups.iter().any(|group| group == "system:serviceaccounts" || group == "system:serviceaccounts:kube-system")
        || service_accounts.iter().any(|account| {
            account.starts_with("kube-system:") || elsewhere().any(|known| covers_all(account, &[known]))
        })
}

/// Whether a pattern with wildcards covers all of these names.
fn covers_all(pattern: &str, names: &[&str]) -> bool {
    globset::Glob::new(pattern).is_ok_and(|glob| {
        let glob = glob.compile_matcher();
        names.iter().all(|name| glob.is_match(name))
    })
}

/// All subjects of a document.
fn subjects(document: &PolicyDocument) -> Vec<(FieldPath, Opening, &SubjectsSpec)> {
    let Some(governance) = &document.spec.governance else { return Vec::new() };
    let mut found = Vec::new();
    found.extend(governance.break_glass.iter().map(|who| (governance_path().key("breakGlass"), Opening::Opens, who)));
    for (at, reserved) in governance.reserved.iter().enumerate() {
        let path = governance_path().key("reserved").index(at).key("allow");
        found.extend(reserved.allow.iter().map(|who| (path.clone(), Opening::Opens, who)));
    }
    for (path, entry) in entries(document) {
        found.extend(entry.except.iter().map(|who| (path.key("except"), Opening::Exempts, who)));
    }
    found
}

type Found = (LintName, FieldPath, String, String);

fn of_subjects(path: &FieldPath, opening: Opening, subjects: &SubjectsSpec) -> Vec<Found> {
    let SubjectsSpec { users, groups, service_accounts } = subjects;
    let mut found = Vec::new();
    let at = |field: &str, index: usize| path.key(field).index(index);
    let open = |path, text: &str, who: &str| {
        let what = format!("{text:?} is {who}");
        (LintName::OpenGate, path, what, "name only the users, groups and service accounts that you mean".to_owned())
    };
    for (index, user) in users.iter().enumerate() {
        let who = if user.starts_with("system:") {
            // Wildcards elsewhere match no name that begins with it.
            match user.as_str() {
                _ if covers_all(user, &["system:node:q7-x", "system:serviceaccount:q7-x:x9"]) => {
                    Some("every kubelet, and the service accounts of all pods")
                }
                _ if covers_all(user, &["system:node:q7-x", "system:node:z"]) => Some("every kubelet"),
                _ if covers_all(user, &["system:serviceaccount:q7-x:x9", "system:serviceaccount:z:y"]) => {
                    Some("the service accounts of all pods")
                }
                _ => None,
            }
        } else {
            covers_all(user, &["q7-x", "z"]).then_some("every user whose name does not begin with \"system:\"")
        };
        if let Some(who) = who {
            found.push(open(at("users", index), user, who));
        } else if let Some((namespace, name)) = account(user) {
            let what = format!("no user has the name {user:?}: this is how service accounts are written");
            let help = format!("did you mean serviceAccounts: [\"{namespace}:{name}\"]?");
            found.push((LintName::MistypedSubject, at("users", index), what, help));
        }
    }
    for (index, group) in groups.iter().enumerate() {
        let who = match group.as_str() {
            other if !other.starts_with("system:") && covers_all(other, &["q7-x", "z"]) => {
                Some("every group whose name does not begin with \"system:\"")
            }
            other if covers_all(other, &["system:authenticated"]) => Some(
                "everybody whom the API server has authenticated, kubelets and the service accounts of all pods included",
            ),
            "system:unauthenticated" => Some("everybody whom the API server has not authenticated"),
            "system:serviceaccounts" => Some("the service accounts of all pods"),
            _ => None,
        };
        if let Some(who) = who {
            found.push(open(at("groups", index), group, who));
        } else if let Some(meant) = meant(group) {
            let what = format!("{group:?} is not a group of Kubernetes");
            found.push((LintName::MistypedSubject, at("groups", index), what, format!("did you mean {meant:?}?")));
        }
    }
    for (index, account) in service_accounts.iter().enumerate() {
        // Many entries exempt all of them, because operators have conventions of their own.
        if opening == Opening::Opens && covers_all(account, &["q7-x:x9", "z:y"]) {
            found.push(open(at("serviceAccounts", index), account, "the service accounts of all pods"));
        }
    }
    found
}

/// The system group that a name is most likely meant to be. Groups below it, such as those of namespaces, are others.
fn meant(group: &str) -> Option<&'static str> {
    let is_known = SYSTEM_GROUPS.contains(&group) || group.matches(':').count() != 1 || group.contains('*');
    let near = nearest(group, &SYSTEM_GROUPS).filter(|_| group.starts_with("system:") && !is_known)?;
    (strsim::damerau_levenshtein(group, near) <= 2).then_some(near)
}

/// Namespace and name, if a user is written as `namespace:name`.
fn account(user: &str) -> Option<(&str, &str)> {
    let is_name = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'.'))
    };
    user.split_once(':').filter(|(namespace, name)| *namespace != "system" && is_name(namespace) && is_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_group_of_kubernetes_is_meant_to_be_the_nearest_one() {
        assert_eq!(meant("system:master"), Some("system:masters"));
        for fine in
            ["system:masters", "master", "system:master*", "system:serviceaccount:kube-system", "system:far-from-all"]
        {
            assert_eq!(meant(fine), None, "{fine}");
        }
    }
}
