//! The claims of field managers on a node's keys, from `managedFields`.
//!
//! No field manager claims a webhook's patch; a requester's own keys are claimed by its manager. Clients choose the names
//! of managers, so a claim proves that a key is not nodegate's, but not whose it is.
//!
//! `managedFields` are parsed without building a tree: only the keys of labels and annotations are kept, and everything
//! else is skipped at any depth. The kept data is limited. If a limit is exceeded, every key counts as claimed, so that
//! nodegate owns too little rather than too much.

mod parse;

/// The field manager of the controller's writes.
pub const FIELD_MANAGER: &str = "nodegate";

/// One field manager's claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The name of the manager, chosen by the client.
    pub manager: Box<str>,
    /// Whether it wrote through `nodes/status`.
    pub status: bool,
    /// The time of its last write (RFC 3339, so texts sort by time).
    pub time: Box<str>,
    labels: Keys,
    annotations: Keys,
    taints: bool,
}

impl Claim {
    /// Whether the claim looks like a kubelet's. A kubelet can choose another name, but the API server records writes
    /// through `nodes/status`, which other writers do not use for labels.
    pub fn is_kubelets(&self) -> bool {
        self.status || &*self.manager == "kubelet"
    }
}

/// Sorted keys, because clients choose how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Keys(Box<[Box<str>]>);

impl Keys {
    fn contain(&self, key: &str) -> bool {
        self.0.binary_search_by(|claimed| (**claimed).cmp(key)).is_ok()
    }
}

/// The claims on the taints of a node, with their times. A webhook's patch does not change them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintsClaimed(Box<[WriteOf]>);

/// Who has written a node, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writes(Box<[WriteOf]>);

/// The last write of a manager.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WriteOf {
    manager: Box<str>,
    /// Whether it was through `nodes/status`.
    status: bool,
    time: Box<str>,
}

impl Writes {
    /// Whether the manager of this claim has written since.
    fn is_before(&self, claim: &Claim) -> bool {
        !self.0.iter().any(|write| write.is_of(claim))
    }
}

impl WriteOf {
    fn new(claim: &Claim) -> Self {
        Self { manager: claim.manager.clone(), status: claim.status, time: claim.time.clone() }
    }

    fn is_of(&self, claim: &Claim) -> bool {
        (&self.manager, self.status, &self.time) == (&claim.manager, claim.status, &claim.time)
    }
}

/// Whether all of `managedFields` was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Extent {
    #[default]
    Whole,
    /// A limit was exceeded, or the text is not JSON: unknown keys count as claimed.
    Part,
}

/// All claims on a node's labels, annotations and taints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    claims: Box<[Claim]>,
    extent: Extent,
}

impl Claims {
    /// Parses the JSON text of `metadata.managedFields`.
    ///
    /// # Guarantees
    /// Any text of any nesting is parsed in linear time, with a small stack and limited memory. If a limit is exceeded,
    /// or the text is not JSON, every key counts as claimed.
    pub fn parse(managed_fields: &str) -> Self {
        let unread = |_| Self { claims: Box::default(), extent: Extent::Part };
        serde_json::from_str(managed_fields).unwrap_or_else(unread)
    }

    /// Whether a field manager claims this label, or might claim it.
    pub fn has_label(&self, key: &str) -> bool {
        self.extent == Extent::Part || self.claims.iter().any(|claim| claim.labels.contain(key))
    }

    /// The same for managers other than the controller's.
    pub fn others_have_label(&self, key: &str) -> bool {
        let mut others = self.claims.iter().filter(|claim| &*claim.manager != FIELD_MANAGER);
        self.extent == Extent::Part || others.any(|claim| claim.labels.contain(key))
    }

    /// Whether the controller claims this label, or might claim it.
    pub fn controller_has_label(&self, key: &str) -> bool {
        let mut own = self.claims.iter().filter(|claim| &*claim.manager == FIELD_MANAGER);
        self.extent == Extent::Part || own.any(|claim| claim.labels.contain(key))
    }

    /// The managers other than the controller's that claim this label. A limit that was exceeded hides claims.
    pub fn label_managers(&self, key: &str) -> impl Iterator<Item = &str> {
        let all = self.claims.iter().filter(move |claim| claim.labels.contain(key));
        all.map(|claim| &*claim.manager).filter(|manager| *manager != FIELD_MANAGER)
    }

    /// Whether a field manager claims this annotation, or might claim it.
    pub fn has_annotation(&self, key: &str) -> bool {
        self.extent == Extent::Part || self.claims.iter().any(|claim| claim.annotations.contain(key))
    }

    /// The last writer of a label, if known.
    pub fn label_writer(&self, key: &str) -> Option<&Claim> {
        self.latest(|claim| claim.labels.contain(key))
    }

    /// The last writer of an annotation, if known.
    pub fn annotation_writer(&self, key: &str) -> Option<&Claim> {
        self.latest(|claim| claim.annotations.contain(key))
    }

    /// The last writer of the taints, if known. Taints are claimed as a whole.
    pub fn taint_writer(&self) -> Option<&Claim> {
        self.latest(|claim| claim.taints)
    }

    /// The claims on the taints with their times, for a comparison with another version of the node; `None` if they are
    /// unknown.
    pub fn taints_claimed(&self) -> Option<TaintsClaimed> {
        let claims = || self.claims.iter().filter(|claim| claim.taints).map(WriteOf::new).collect();
        (self.extent == Extent::Whole).then(|| TaintsClaimed(claims()))
    }

    /// Who has written when, for a comparison with the next version of the node; `None` if it is unknown.
    pub fn writes(&self) -> Option<Writes> {
        (self.extent == Extent::Whole).then(|| Writes(self.claims.iter().map(WriteOf::new).collect()))
    }

    /// The one manager that has written since `before`, which the version before had. A removal leaves no claim, so nobody
    /// is named if there is none or several, or if a write within one second of another may be hidden.
    pub fn only_writer_since(&self, before: &Writes) -> Option<&Claim> {
        let mut new = self.claims.iter().filter(|claim| before.is_before(claim));
        let only = new.next().filter(|_| self.extent == Extent::Whole)?;
        new.next().is_none().then_some(only)
    }

    /// Who has written a label whose value differs from `before`, if known. A webhook's patch in somebody else's write changes the
    /// value and no claim, so this is not who claims the label if only others have written since.
    pub fn label_writer_since(&self, key: &str, before: &Writes) -> Option<&Claim> {
        let others_wrote = || self.claims.iter().any(|claim| before.is_before(claim));
        self.label_writer(key).filter(|claim| before.is_before(claim) || !others_wrote())
    }

    /// Whether the API server records who writes this node. It does not for a node that was created without fields.
    pub fn are_tracked(&self) -> bool {
        !self.claims.is_empty()
    }

    /// The last writer of any field.
    pub fn last_writer(&self) -> Option<&Claim> {
        self.latest(|_| true)
    }

    fn latest(&self, of: impl Fn(&Claim) -> bool) -> Option<&Claim> {
        self.claims.iter().filter(|claim| of(claim)).max_by(|one, other| one.time.cmp(&other.time))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::parse::{MAX_BYTES, MAX_KEYS, MAX_MANAGERS};
    use super::*;

    #[test]
    fn the_latest_claimant_of_a_key_is_its_writer() {
        let claims = Claims::parse(
            r#"[
            {"manager": "kubelet", "operation": "Update", "time": "2026-01-01T00:00:00Z",
             "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:b": {}, "f:a": {}}}}},
            {"fieldsV1": {"f:metadata": {"f:labels": {"f:b": {}}}, "f:spec": {"f:taints": {}}},
             "manager": "kubectl-label", "operation": "Update", "time": "2026-01-02T00:00:00Z"}
        ]"#,
        );
        assert_eq!(&*claims.label_writer("b").unwrap().manager, "kubectl-label");
        assert_eq!(&*claims.label_writer("a").unwrap().manager, "kubelet");
        assert_eq!(&*claims.taint_writer().unwrap().manager, "kubectl-label");
        assert!(claims.has_label("a") && !claims.has_label("c") && !claims.has_label("."));
    }

    #[test]
    fn who_has_removed_a_key_is_told_only_if_exactly_one_manager_has_written_since() {
        let claims = |entries: &[(&str, u32)]| {
            let entry = |(manager, second): &(&str, u32)| {
                format!(r#"{{"manager": "{manager}", "time": "2026-01-01T00:00:0{second}Z", "fieldsV1": {{}}}}"#)
            };
            Claims::parse(&format!("[{}]", entries.iter().map(entry).collect::<Vec<_>>().join(",")))
        };
        let before = claims(&[("kubelet", 1), ("kubectl-label", 2)]).writes().unwrap();
        let since =
            |entries: &[(&str, u32)]| claims(entries).only_writer_since(&before).map(|claim| claim.manager.clone());
        assert_eq!(since(&[("kubelet", 1)]), None, "a removal leaves nothing, not even the remover's claim");
        assert_eq!(since(&[("kubelet", 3)]).as_deref(), Some("kubelet"));
        assert_eq!(since(&[("kubelet", 1), ("edit", 2)]).as_deref(), Some("edit"));
        assert_eq!(since(&[("kubelet", 3), ("edit", 3)]), None, "two of them");
        assert!(Claims::parse("[").only_writer_since(&before).is_none() && Claims::parse("[").writes().is_none());
    }

    #[test]
    fn a_node_without_managed_fields_has_no_claims() {
        assert_eq!(Claims::parse("null"), Claims::default());
    }

    #[test]
    fn the_claims_on_taints_differ_if_one_of_them_is_new_later_or_unknown() {
        let claimed = |manager: &str, time: &str, others: &str| {
            Claims::parse(&format!(
                r#"[{{"manager": "{manager}", "time": "{time}", "fieldsV1": {{"f:spec": {{"f:taints": {{}}}}}}}}{others}]"#
            ))
            .taints_claimed()
        };
        let before = claimed("kubectl", "2026-01-01T00:00:00Z", "");
        assert!(before.is_some());
        let label = r#", {"manager": "labeller", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}}"#;
        assert_eq!(claimed("kubectl", "2026-01-01T00:00:00Z", label), before, "a claim on a label");
        assert_ne!(claimed("kubectl", "2026-01-01T00:00:01Z", ""), before);
        assert_ne!(claimed("kubectl-taint", "2026-01-01T00:00:00Z", ""), before);
        let taints = r#", {"manager": "other", "fieldsV1": {"f:spec": {"f:taints": {}}}}"#;
        assert_ne!(claimed("kubectl", "2026-01-01T00:00:00Z", taints), before);
        assert!(Claims::default().taints_claimed().is_some_and(|none| Some(none) != before));
        assert_eq!(Claims::parse("[").taints_claimed(), None, "the claims are unknown");
    }

    #[test]
    fn no_nesting_hides_a_claim() {
        let deep = |levels: usize| format!("{}{{}}{}", r#"{"f:x":"#.repeat(levels), "}".repeat(levels));
        for levels in [150, 10_000, 200_000] {
            let claims = Claims::parse(&format!(
                r#"[{{"manager": "m", "fieldsV1": {{"f:status": {deep}, "f:metadata": {{"f:x": {deep}, "f:labels": {{"f:a": {deep}}}}}}}}}]"#,
                deep = deep(levels)
            ));
            assert!(claims.has_label("a") && !claims.has_label("b"), "{levels}");
        }
    }

    #[test]
    fn values_of_another_type_are_not_claims() {
        for text in ["7", "{}", "[7, null, [[]]]", r#"[{"manager": 1, "fieldsV1": [{"f:metadata": 1}]}]"#] {
            assert!(!Claims::parse(text).has_label("a"), "{text}");
        }
        let claims = Claims::parse(r#"[{"fieldsV1": {"f:metadata": {"f:labels": ["f:a"]}, "f:spec": "f:taints"}}]"#);
        assert!(!claims.has_label("a") && claims.taint_writer().is_none());
    }

    #[test]
    fn beyond_the_limits_every_key_counts_as_claimed() {
        let entry = |keys: &str| format!(r#"{{"fieldsV1": {{"f:metadata": {{"f:labels": {{{keys}}}}}}}}}"#);
        let keys = |count: usize| (0..count).map(|at| format!(r#""f:k{at}": {{}}"#)).collect::<Vec<_>>().join(",");
        let claims = |entries: &[String]| Claims::parse(&format!("[{}]", entries.join(",")));
        assert!(!claims(&[entry(&keys(MAX_KEYS))]).has_label("other"));
        let many = claims(&[entry(&keys(MAX_KEYS / 2)), entry(&keys(150_000))]);
        assert!(many.has_label("other") && many.has_annotation("other"));
        assert_eq!(many.claims.iter().map(|claim| claim.labels.0.len()).sum::<usize>(), MAX_KEYS);
        assert!(!claims(&vec![entry(""); MAX_MANAGERS]).has_label("other"));
        assert!(claims(&vec![entry(""); MAX_MANAGERS + 1]).has_label("other"));
        assert!(claims(&[entry(&format!(r#""f:{}": {{}}"#, "x".repeat(MAX_BYTES + 1)))]).has_label("other"));
        assert!(Claims::parse("[").has_label("other"), "what is not JSON");
    }
}
