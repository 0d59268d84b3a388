//! Who claims which keys of a node, by its `managedFields`.
//!
//! A webhook's patch is claimed by no field manager, a requester's own keys by his. Managers' names are chosen by
//! clients, so this may prove "not ours" and never "theirs".

use serde_json::Value as Json;

/// One field manager's claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The name it calls itself.
    pub manager: Box<str>,
    /// Whether it wrote through `nodes/status`.
    pub status: bool,
    /// When it last wrote (RFC 3339, so that later texts sort later).
    pub time: Box<str>,
    labels: Keys,
    annotations: Keys,
    taints: bool,
}

/// Keys, sorted: a client decides how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Keys(Box<[Box<str>]>);

impl Keys {
    fn contain(&self, key: &str) -> bool {
        self.0.binary_search_by(|claimed| (**claimed).cmp(key)).is_ok()
    }
}

/// All claims on a node's labels, annotations and taints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims(Box<[Claim]>);

impl Claims {
    /// Reads `metadata.managedFields`.
    pub fn parse(managed_fields: &Json) -> Self {
        let entries = managed_fields.as_array().map(Vec::as_slice).unwrap_or_default();
        Self(entries.iter().map(claim).collect())
    }

    /// Whether a field manager claims this label.
    pub fn has_label(&self, key: &str) -> bool {
        self.0.iter().any(|claim| claim.labels.contain(key))
    }

    /// Whether a field manager claims this annotation.
    pub fn has_annotation(&self, key: &str) -> bool {
        self.0.iter().any(|claim| claim.annotations.contain(key))
    }

    /// Who wrote a label last, as far as it is known.
    pub fn label_writer(&self, key: &str) -> Option<&Claim> {
        self.latest(|claim| claim.labels.contain(key))
    }

    /// Who wrote an annotation last, as far as it is known.
    pub fn annotation_writer(&self, key: &str) -> Option<&Claim> {
        self.latest(|claim| claim.annotations.contain(key))
    }

    /// Who wrote the taints last, as far as it is known: they are claimed as a whole.
    pub fn taint_writer(&self) -> Option<&Claim> {
        self.latest(|claim| claim.taints)
    }

    /// Who wrote anything last: the best guess at who removed something.
    pub fn last_writer(&self) -> Option<&Claim> {
        self.latest(|_| true)
    }

    fn latest(&self, of: impl Fn(&Claim) -> bool) -> Option<&Claim> {
        self.0.iter().filter(|claim| of(claim)).max_by(|one, other| one.time.cmp(&other.time))
    }
}

fn claim(entry: &Json) -> Claim {
    let text = |field: &str| entry[field].as_str().unwrap_or_default().into();
    let fields = &entry["fieldsV1"];
    let keys = |field: &str| {
        let claimed = fields["f:metadata"][field].as_object();
        let mut keys: Box<[Box<str>]> =
            claimed.into_iter().flatten().filter_map(|(key, _)| key.strip_prefix("f:").map(Box::from)).collect();
        keys.sort_unstable();
        Keys(keys)
    };
    Claim {
        manager: text("manager"),
        status: entry["subresource"] == "status",
        time: text("time"),
        labels: keys("f:labels"),
        annotations: keys("f:annotations"),
        taints: fields["f:spec"].get("f:taints").is_some(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_latest_claimant_of_a_key_is_its_writer() {
        let claims = Claims::parse(&json!([
            {"manager": "kubelet", "operation": "Update", "time": "2026-01-01T00:00:00Z",
             "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:a": {}, "f:b": {}}}}},
            {"manager": "kubectl-label", "operation": "Update", "time": "2026-01-02T00:00:00Z",
             "fieldsV1": {"f:metadata": {"f:labels": {"f:b": {}}}, "f:spec": {"f:taints": {}}}},
        ]));
        assert_eq!(&*claims.label_writer("b").unwrap().manager, "kubectl-label");
        assert_eq!(&*claims.label_writer("a").unwrap().manager, "kubelet");
        assert_eq!(&*claims.taint_writer().unwrap().manager, "kubectl-label");
        assert!(claims.has_label("a") && !claims.has_label("c") && !claims.has_label("."));
    }

    #[test]
    fn a_node_without_managed_fields_is_claimed_by_nobody() {
        assert_eq!(Claims::parse(&Json::Null), Claims::default());
    }
}
