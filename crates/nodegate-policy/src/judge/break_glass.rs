//! Who may override a policy in an emergency.

use super::Exemptions;
use super::findings::cut;
use crate::facts::requester::Requester;
use crate::set::governance::Governance;

/// The subjects that may override policies: those of each policy, and the groups that may override all.
#[derive(Clone, Copy)]
pub(super) struct BreakGlass<'g> {
    pub(super) governance: &'g Governance,
    pub(super) exemptions: &'g Exemptions,
}

impl BreakGlass<'_> {
    /// As whom the requester overrides this document, if they may: `group oncall` or `user nina`.
    pub(super) fn overridden_by(&self, document: usize, requester: &Requester<'_>) -> Option<String> {
        let open = &self.exemptions.break_glass_groups;
        if let Some(group) = requester.groups.iter().find(|group| open.contains(group)) {
            return Some(format!("group {}", cut(group)));
        }
        let document = self.governance.document(document);
        let subjects = document.break_glass.iter().find(|subjects| subjects.contain(requester))?;
        let group = requester.groups.iter().find(|group| subjects.groups.contains(group));
        Some(
            group.map_or_else(|| format!("user {}", cut(&requester.username)), |group| format!("group {}", cut(group))),
        )
    }

    /// How to override a document.
    pub(super) fn override_hint(&self, document: usize) -> String {
        let document = self.governance.document(document);
        let groups = document.break_glass.iter().flat_map(|subjects| subjects.groups.written());
        let mut groups: Vec<&str> = groups.chain(self.exemptions.break_glass_groups.written()).collect();
        groups.sort_unstable();
        groups.dedup();
        let groups = (!groups.is_empty()).then(|| format!("a member of break-glass group {}", groups.join(" or ")));
        let others = document.break_glass.iter().flat_map(|subjects| {
            let (users, accounts) = (subjects.users.written(), subjects.service_accounts.written());
            users.map(|user| format!("user {user}")).chain(accounts.map(|account| format!("service account {account}")))
        });
        let who: Vec<String> = groups.into_iter().chain(others).collect();
        if who.is_empty() {
            "to allow overrides, set governance.breakGlass in the policy or start nodegate with --break-glass-group"
                .to_owned()
        } else {
            format!("to override, act as {}", who.join(" or "))
        }
    }
}
