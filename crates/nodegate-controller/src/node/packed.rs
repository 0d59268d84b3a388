//! What is kept of a node, compressed: most of its keys and values stand in it several times, and most nodes are seldom looked at.

use std::sync::Arc;

use nodegate_policy::cel::Paths;
use nodegate_policy::{Claims, FactsError, NodeFacts};

/// Maximum size of `managedFields` that are kept as text, in bytes; of longer ones only what is used, within its own limits.
const CLAIMS_MAX: usize = 64 * 1024;

/// The texts of a node.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// The JSON, and behind it `managedFields`.
    texts: Box<[u8]>,
    /// The length of the JSON.
    json: u32,
    /// The claims of `managedFields` that are too long to be kept.
    claims: Option<Box<Claims>>,
}

impl Packed {
    pub(super) fn new(mut json: String, managed_fields: &str) -> Self {
        let length = json.len();
        let is_text = managed_fields.len() <= CLAIMS_MAX;
        if is_text {
            json.push_str(managed_fields);
        }
        Self {
            texts: lz4_flex::compress_prepend_size(json.as_bytes()).into(),
            // An object that is read has at most 32 MiB.
            json: u32::try_from(length).unwrap_or_default(),
            claims: (!is_text).then(|| Box::new(Claims::parse(managed_fields))),
        }
    }

    pub(super) fn text(&self, parts: &Arc<Paths>) -> NodeText {
        let texts = lz4_flex::decompress_size_prepended(&self.texts).unwrap_or_default();
        NodeText {
            texts: String::from_utf8(texts).unwrap_or_default(),
            json: self.json as usize,
            parts: Arc::clone(parts),
            claims: self.claims.clone(),
        }
    }
}

/// What is kept of a node.
#[derive(Debug)]
pub struct NodeText {
    texts: String,
    json: usize,
    parts: Arc<Paths>,
    claims: Option<Box<Claims>>,
}

impl NodeText {
    /// The JSON of what is kept of it.
    pub fn json(&self) -> &str {
        self.texts.get(..self.json).unwrap_or_default()
    }

    /// Its facts.
    ///
    /// # Errors
    /// Returns an error if a field has an unexpected type.
    pub fn facts(&self) -> Result<NodeFacts<'_>, FactsError> {
        NodeFacts::parse_parts(self.json(), &self.parts)
    }

    /// Which field manager claims which key.
    pub fn claims(&self) -> Claims {
        match (&self.claims, self.texts.get(self.json..)) {
            (Some(claims), _) => Claims::clone(claims),
            (None, None | Some("")) => Claims::default(),
            (None, Some(managed_fields)) => Claims::parse(managed_fields),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_there_again_and_takes_a_fraction() {
        let labels: Vec<String> = (0..60).map(|at| format!(r#""feature.example.com/cpu.F{at}":"true""#)).collect();
        let json = format!(r#"{{"metadata":{{"name":"n","labels":{{{}}}}}}}"#, labels.join(","));
        let claimed: Vec<String> = (0..60).map(|at| format!(r#""f:feature.example.com/cpu.F{at}":{{}}"#)).collect();
        // Of many managers only the last has anything to do with labels.
        for others in [0, 2_000] {
            let other = r#"{"manager":"other","fieldsV1":{"f:status":{}}},"#.repeat(others);
            let managed_fields = format!(
                r#"[{{"manager":"m","fieldsV1":{{"f:metadata":{{"f:labels":{{{}}}}}}}}},{other}{{"manager":"z"}}]"#,
                claimed.join(",")
            );
            let packed = Packed::new(json.clone(), &managed_fields);
            assert_eq!(packed.claims.is_some(), others > 0);
            assert!(packed.texts.len() < json.len() / 2, "{} bytes", packed.texts.len());
            let text = packed.text(&Arc::new(Paths::Whole));
            assert_eq!(text.json(), json);
            assert_eq!(text.facts().unwrap().labels().count(), 60);
            assert_eq!(text.claims(), Claims::parse(&managed_fields));
            assert!(text.claims().has_label("feature.example.com/cpu.F7"));
        }
        let text = Packed::new(json, "").text(&Arc::new(Paths::Whole));
        assert_eq!(text.claims(), Claims::default());
    }
}
