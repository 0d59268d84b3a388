//! Who may override an entry in an emergency.

use super::Exemptions;
use crate::policy::governance::{Entry, Governance};
use crate::policy::request::Requester;

/// Break-glass groups and users, of documents and of everything.
#[derive(Clone, Copy)]
pub(super) struct Glass<'g> {
    pub(super) governance: &'g Governance,
    pub(super) exemptions: &'g Exemptions,
}

impl Glass<'_> {
    /// Who of the requester's identities overrides this entry.
    pub(super) fn overridden_by(&self, entry: &Entry, requester: &Requester<'_>) -> Option<String> {
        let open = &self.exemptions.break_glass_groups;
        if let Some(group) = requester.groups.iter().find(|group| open.contains(group)) {
            return Some(group.to_string());
        }
        let document = self.governance.document(entry.document);
        document.break_glass.iter().any(|subjects| subjects.contain(requester)).then(|| requester.username.to_string())
    }

    /// How to override an entry.
    pub(super) fn way(&self, entry: &Entry) -> String {
        let document = self.governance.document(entry.document);
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
            "to override, name a break-glass group in the policy or start nodegate with --break-glass-group".to_owned()
        } else {
            format!("to override, act as {}", who.join(" or "))
        }
    }
}
