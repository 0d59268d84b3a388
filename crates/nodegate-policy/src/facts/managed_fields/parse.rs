//! Parses `managedFields` into [`Claims`].

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Claim, Claims, Extent, Keys};
use crate::facts::json::borrow::Text;

/// Maximum number of entries of `managedFields` that are read. The API server keeps ten managers for updates, and any number for apply.
pub(super) const MAX_MANAGERS: usize = 256;
/// Maximum number of keys that are kept, for all managers.
pub(super) const MAX_KEYS: usize = 8_192;
/// Maximum number of bytes of text that are kept, for all managers.
pub(super) const MAX_BYTES: usize = 512 * 1024;

impl<'de> Deserialize<'de> for Claims {
    /// Like [`Claims::parse`], within a larger document. Null means no claims.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut reader = Reader::default();
        At { place: FieldsPosition::ManagedFields, reader: &mut reader }.deserialize(deserializer)?;
        Ok(reader.finish())
    }
}

/// A position in `managedFields`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldsPosition {
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

impl FieldsPosition {
    /// The position of the member `name`, if anything in it is read.
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

/// The data read so far.
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
    /// The text, if it is within the limits.
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

    /// Records a member by its name.
    fn member(&mut self, place: FieldsPosition, name: &str) {
        match place {
            FieldsPosition::Labels => {
                let key = self.key(name);
                self.labels.extend(key);
            }
            FieldsPosition::Annotations => {
                let key = self.key(name);
                self.annotations.extend(key);
            }
            FieldsPosition::Spec if name == "f:taints" => {
                if let Some(claim) = self.claims.last_mut() {
                    claim.taints = true;
                }
            }
            _ => {}
        }
    }

    fn text(&mut self, place: FieldsPosition, text: &str) {
        let kept = match place {
            FieldsPosition::Manager | FieldsPosition::Time => self.keep(text),
            _ => None,
        };
        let Some(claim) = self.claims.last_mut() else { return };
        match (place, kept) {
            (FieldsPosition::Manager, Some(manager)) => claim.manager = manager,
            (FieldsPosition::Time, Some(time)) => claim.time = time,
            (FieldsPosition::Subresource, _) => claim.status = text == "status",
            _ => {}
        }
    }

    /// Ends an entry and adds its claim.
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

/// Reads the value at one position. A value of another type than in Kubernetes is ignored.
struct At<'r> {
    place: FieldsPosition,
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
        if place == FieldsPosition::Entry {
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
        if place == FieldsPosition::Entry {
            reader.close();
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Self { place, reader } = self;
        while place == FieldsPosition::ManagedFields && reader.claims.len() < MAX_MANAGERS {
            if items.next_element_seed(At { place: FieldsPosition::Entry, reader: &mut *reader })?.is_none() {
                return Ok(());
            }
        }
        while items.next_element::<IgnoredAny>()?.is_some() {
            if place == FieldsPosition::ManagedFields {
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
