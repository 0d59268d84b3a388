//! Who claims which keys of a node, by its `managedFields`.
//!
//! A webhook's patch is claimed by no field manager, a requester's own keys by its own. Managers' names are chosen by
//! clients, so this may prove "not ours" and never "theirs".
//!
//! `managedFields` are read without building a tree of them: only the keys of labels and annotations are kept, and
//! whatever else is nested in there, however deep, is skipped. There are bounds on what is kept. Beyond them every key
//! counts as claimed, so that nodegate owns too little, never too much.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::borrowed::Text;

/// Most entries of `managedFields` that are read. The API server keeps ten managers that update; those that apply come on top.
const MAX_MANAGERS: usize = 256;
/// Most keys that are kept, of all managers together.
const MAX_KEYS: usize = 8_192;
/// Most bytes of text that are kept, of all managers together.
const MAX_BYTES: usize = 512 * 1024;

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

impl Claim {
    /// Whether this is how a kubelet writes. Another name it can call itself; through `nodes/status`, which other writers do
    /// not use for labels, the API server says so.
    pub fn is_kubelets(&self) -> bool {
        self.status || &*self.manager == "kubelet"
    }
}

/// Keys, sorted: a client decides how many there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Keys(Box<[Box<str>]>);

impl Keys {
    fn contain(&self, key: &str) -> bool {
        self.0.binary_search_by(|claimed| (**claimed).cmp(key)).is_ok()
    }
}

/// Who claims the taints of a node, and since when. A webhook's patch leaves it as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaintsClaimed(Box<[TaintClaim]>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct TaintClaim {
    manager: Box<str>,
    status: bool,
    time: Box<str>,
}

/// Whether all of `managedFields` was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Extent {
    #[default]
    Whole,
    /// There was more than the bounds allow, or something that is not JSON: what is not known counts as claimed.
    Part,
}

/// All claims on a node's labels, annotations and taints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    claims: Box<[Claim]>,
    extent: Extent,
}

impl Claims {
    /// Reads the JSON text of `metadata.managedFields`.
    ///
    /// # Guarantees
    /// Any text of any nesting is read in linear time, with a small stack and bounded memory. Where there is more than
    /// is kept, or where the text is not JSON, every key counts as claimed.
    pub fn parse(managed_fields: &str) -> Self {
        let unread = |_| Self { claims: Box::default(), extent: Extent::Part };
        serde_json::from_str(managed_fields).unwrap_or_else(unread)
    }

    /// Whether a field manager claims this label, or may claim it.
    pub fn has_label(&self, key: &str) -> bool {
        self.extent == Extent::Part || self.claims.iter().any(|claim| claim.labels.contain(key))
    }

    /// Whether a field manager claims this annotation, or may claim it.
    pub fn has_annotation(&self, key: &str) -> bool {
        self.extent == Extent::Part || self.claims.iter().any(|claim| claim.annotations.contain(key))
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

    /// Who claims the taints and since when, to be compared with the same of another version of the node; `None` where
    /// that is not known.
    pub fn taints_claimed(&self) -> Option<TaintsClaimed> {
        let claim = |claim: &Claim| TaintClaim {
            manager: claim.manager.clone(),
            status: claim.status,
            time: claim.time.clone(),
        };
        let claims = || self.claims.iter().filter(|claim| claim.taints).map(claim).collect();
        (self.extent == Extent::Whole).then(|| TaintsClaimed(claims()))
    }

    /// Who wrote anything last: the best guess at who removed something.
    pub fn last_writer(&self) -> Option<&Claim> {
        self.latest(|_| true)
    }

    fn latest(&self, of: impl Fn(&Claim) -> bool) -> Option<&Claim> {
        self.claims.iter().filter(|claim| of(claim)).max_by(|one, other| one.time.cmp(&other.time))
    }
}

impl<'de> Deserialize<'de> for Claims {
    /// As [`Claims::parse`], from within a larger document. Null is no claim.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut reader = Reader::default();
        At { place: Place::ManagedFields, reader: &mut reader }.deserialize(deserializer)?;
        Ok(reader.finish())
    }
}

/// Where in `managedFields` something stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    ManagedFields,
    Entry,
    Manager,
    Subresource,
    Time,
    Fields,
    Metadata,
    Labels,
    Annotations,
    Spec,
}

impl Place {
    /// The place of the member `name`, if anything in there is read.
    fn member(self, name: &str) -> Option<Self> {
        match (self, name) {
            (Self::Entry, "manager") => Some(Self::Manager),
            (Self::Entry, "subresource") => Some(Self::Subresource),
            (Self::Entry, "time") => Some(Self::Time),
            (Self::Entry, "fieldsV1") => Some(Self::Fields),
            (Self::Fields, "f:metadata") => Some(Self::Metadata),
            (Self::Fields, "f:spec") => Some(Self::Spec),
            (Self::Metadata, "f:labels") => Some(Self::Labels),
            (Self::Metadata, "f:annotations") => Some(Self::Annotations),
            _ => None,
        }
    }
}

/// What has been read.
#[derive(Default)]
struct Reader {
    claims: Vec<Claim>,
    labels: Vec<Box<str>>,
    annotations: Vec<Box<str>>,
    keys: usize,
    bytes: usize,
    extent: Extent,
}

impl Reader {
    /// The text, if there is room for it.
    fn keep(&mut self, text: &str) -> Option<Box<str>> {
        self.bytes += text.len();
        if self.bytes > MAX_BYTES {
            self.extent = Extent::Part;
            return None;
        }
        Some(text.into())
    }

    fn key(&mut self, name: &str) -> Option<Box<str>> {
        let key = name.strip_prefix("f:")?;
        self.keys += 1;
        if self.keys > MAX_KEYS {
            self.extent = Extent::Part;
            return None;
        }
        self.keep(key)
    }

    /// A member of something that is read, by its name alone.
    fn member(&mut self, place: Place, name: &str) {
        match place {
            Place::Labels => {
                let key = self.key(name);
                self.labels.extend(key);
            }
            Place::Annotations => {
                let key = self.key(name);
                self.annotations.extend(key);
            }
            Place::Spec if name == "f:taints" => {
                if let Some(claim) = self.claims.last_mut() {
                    claim.taints = true;
                }
            }
            _ => {}
        }
    }

    fn text(&mut self, place: Place, text: &str) {
        let kept = match place {
            Place::Manager | Place::Time => self.keep(text),
            _ => None,
        };
        let Some(claim) = self.claims.last_mut() else { return };
        match (place, kept) {
            (Place::Manager, Some(manager)) => claim.manager = manager,
            (Place::Time, Some(time)) => claim.time = time,
            (Place::Subresource, _) => claim.status = text == "status",
            _ => {}
        }
    }

    /// The end of an entry: what was found of it belongs to it.
    fn close(&mut self) {
        let sorted = |keys: &mut Vec<Box<str>>| {
            keys.sort_unstable();
            Keys(std::mem::take(keys).into_boxed_slice())
        };
        let (labels, annotations) = (sorted(&mut self.labels), sorted(&mut self.annotations));
        if let Some(claim) = self.claims.last_mut() {
            (claim.labels, claim.annotations) = (labels, annotations);
        }
    }

    fn finish(self) -> Claims {
        Claims { claims: self.claims.into_boxed_slice(), extent: self.extent }
    }
}

/// Reads what stands at one place. What has another type than Kubernetes gives it says nothing.
struct At<'r> {
    place: Place,
    reader: &'r mut Reader,
}

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("managedFields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { place, reader } = self;
        if place == Place::Entry {
            reader.claims.push(Claim::default());
        }
        while let Some(Text(name)) = map.next_key()? {
            reader.member(place, &name);
            match place.member(&name) {
                Some(place) => map.next_value_seed(At { place, reader: &mut *reader })?,
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if place == Place::Entry {
            reader.close();
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { place, reader } = self;
        while place == Place::ManagedFields && reader.claims.len() < MAX_MANAGERS {
            if items.next_element_seed(At { place: Place::Entry, reader: &mut *reader })?.is_none() {
                return Ok(());
            }
        }
        while items.next_element::<IgnoredAny>()?.is_some() {
            if place == Place::ManagedFields {
                reader.extent = Extent::Part;
            }
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.reader.text(self.place, text);
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
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
    fn a_node_without_managed_fields_is_claimed_by_nobody() {
        assert_eq!(Claims::parse("null"), Claims::default());
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
    fn what_has_another_type_claims_nothing() {
        for text in ["7", "{}", "[7, null, [[]]]", r#"[{"manager": 1, "fieldsV1": [{"f:metadata": 1}]}]"#] {
            assert!(!Claims::parse(text).has_label("a"), "{text}");
        }
        let claims = Claims::parse(r#"[{"fieldsV1": {"f:metadata": {"f:labels": ["f:a"]}, "f:spec": "f:taints"}}]"#);
        assert!(!claims.has_label("a") && claims.taint_writer().is_none());
    }

    #[test]
    fn beyond_the_bounds_every_key_counts_as_claimed() {
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
