//! What is kept of a node, compressed: most of its keys and values stand in it several times, and most nodes are seldom looked at.

use std::sync::{Arc, OnceLock};

use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use nodegate_policy::cel::Paths;
use nodegate_policy::{Claims, FactsError, NodeFacts};
use parking_lot::Mutex;

/// Maximum size of all samples, in bytes. LZ4 looks back for 64 KiB, and a text needs room as well.
const SAMPLES_MAX: usize = 48 * 1024;
/// A text of which more than one part in so many is left is unlike the samples.
const UNLIKE: usize = 8;
/// Maximum size of `managedFields` that are kept as text, in bytes; of longer ones only what is used, within its own limits.
const CLAIMS_MAX: usize = 64 * 1024;

/// The texts of a few nodes, in which LZ4 finds nearly all that others like them have.
#[derive(Debug, Default)]
pub(super) struct Samples(Mutex<Arc<[u8]>>);

impl Samples {
    /// Adds the text of a node that is unlike those before, if there is room. No node may take all of it.
    fn add(&self, text: &[u8]) {
        let mut samples = self.0.lock();
        if text.len() <= SAMPLES_MAX / 3 && samples.len() + text.len() <= SAMPLES_MAX {
            *samples = [&**samples, text].concat().into();
        }
    }
}

/// The texts of a node.
#[derive(Clone, Debug)]
pub(super) struct Packed {
    /// The JSON, and behind it `managedFields`.
    texts: Box<[u8]>,
    samples: Arc<[u8]>,
    /// The length of the JSON.
    json: u32,
    /// The claims of `managedFields` that are too long to be kept.
    claims: Option<Arc<Claims>>,
}

impl Packed {
    pub(super) fn new(mut json: String, managed_fields: &str, samples: &Samples) -> Self {
        let length = json.len();
        let is_text = managed_fields.len() <= CLAIMS_MAX;
        if is_text {
            json.push_str(managed_fields);
        }
        let known = samples.0.lock().clone();
        let texts = compress_prepend_size_with_dict(json.as_bytes(), &known);
        if known.is_empty() || texts.len() > json.len() / UNLIKE {
            samples.add(json.as_bytes());
        }
        Self {
            texts: texts.into(),
            samples: known,
            // An object that is read has at most 32 MiB.
            json: u32::try_from(length).unwrap_or_default(),
            claims: (!is_text).then(|| Arc::new(Claims::parse(managed_fields))),
        }
    }

    pub(super) fn text(&self, parts: &Arc<Paths>) -> NodeText {
        let texts = decompress_size_prepended_with_dict(&self.texts, &self.samples).unwrap_or_default();
        NodeText {
            texts: String::from_utf8(texts).unwrap_or_default(),
            json: self.json as usize,
            parts: Arc::clone(parts),
            claims: self.claims.clone().map_or_else(OnceLock::new, OnceLock::from),
        }
    }
}

/// What is kept of a node.
#[derive(Debug)]
pub struct NodeText {
    texts: String,
    json: usize,
    parts: Arc<Paths>,
    /// Once somebody has asked for them.
    claims: OnceLock<Arc<Claims>>,
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
    pub fn claims(&self) -> &Claims {
        self.shared_claims()
    }

    pub(super) fn shared_claims(&self) -> &Arc<Claims> {
        self.claims.get_or_init(|| match self.texts.get(self.json..) {
            None | Some("") => Arc::default(),
            Some(managed_fields) => Arc::new(Claims::parse(managed_fields)),
        })
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
            let packed = Packed::new(json.clone(), &managed_fields, &Samples::default());
            assert_eq!(packed.claims.is_some(), others > 0);
            assert!(packed.texts.len() < json.len() / 2, "{} bytes", packed.texts.len());
            let text = packed.text(&Arc::new(Paths::Whole));
            assert_eq!(text.json(), json);
            assert_eq!(text.facts().unwrap().labels().count(), 60);
            assert_eq!(*text.claims(), Claims::parse(&managed_fields));
            assert!(text.claims().has_label("feature.example.com/cpu.F7"));
        }
        let text = Packed::new(json, "", &Samples::default()).text(&Arc::new(Paths::Whole));
        assert_eq!(*text.claims(), Claims::default());
    }
    #[test]
    fn nodes_like_one_before_take_little_and_samples_do_not_grow_without_end() {
        let samples = Samples::default();
        let node = |kind: usize, at: usize| {
            let labels: Vec<String> = (0..60)
                .map(|label| format!(r#""example.com/{}":"true""#, (label + 1) * (kind + 1) * 7_919 % 9_973))
                .collect();
            format!(r#"{{"metadata":{{"name":"n{at}","labels":{{{}}}}}}}"#, labels.join(","))
        };
        let sizes = |kind: usize| {
            [0, 1, 2].map(|at| {
                let text = node(kind, at);
                let packed = Packed::new(text.clone(), "", &samples);
                assert_eq!(packed.text(&Arc::new(Paths::Whole)).json(), text);
                packed.texts.len()
            })
        };
        for kind in 0..5 {
            let [first, second, third] = sizes(kind);
            assert!(second < first / 4 && third < first / 4, "{first} {second} {third}");
        }
        for kind in 5..100 {
            sizes(kind);
        }
        let size = samples.0.lock().len();
        assert!((SAMPLES_MAX / 2..=SAMPLES_MAX).contains(&size), "{size}");
    }
}
