//! A value as bytes, shared between the state, the history and the answers without copying.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::sync::Arc;

/// The bytes of a value. A clone shares them.
///
/// In JSON it is a string where that is readable, and base64 where it is not. Either way the text is at
/// most 4/3 of the bytes (and a few more), so that what fits in a transaction fits in a line.
#[derive(Clone, PartialEq, Eq)]
pub struct Value(Arc<[u8]>);

impl Value {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text, if it can stand in JSON without growing by more than a third.
    fn as_plain_text(&self) -> Option<&str> {
        let escaped = self.0.iter().filter(|&&byte| byte == b'"' || byte == b'\\').count();
        let plain = escaped <= self.0.len() / 3 && self.0.iter().all(|&byte| byte >= b' ');
        if plain { std::str::from_utf8(&self.0).ok() } else { None }
    }
}

/// Of bytes or a text.
impl<T: AsRef<[u8]>> From<T> for Value {
    fn from(bytes: T) -> Value {
        Value(bytes.as_ref().into())
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_plain_text() {
            Some(text) if text.len() <= 200 => write!(formatter, "{text:?}"),
            _ => write!(formatter, "({} bytes)", self.0.len()),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Encoded {
    base64: String,
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_plain_text() {
            Some(text) => serializer.serialize_str(text),
            None => Encoded { base64: STANDARD.encode(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Text(String),
            Encoded(Encoded),
        }
        match Form::deserialize(deserializer)? {
            Form::Text(text) => Ok(text.into()),
            Form::Encoded(encoded) => STANDARD
                .decode(&encoded.base64)
                .map(Value::from)
                .map_err(|_| serde::de::Error::custom("a value is not valid base64")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_cannot_be_read_is_base64_in_its_one_form() {
        assert_eq!(serde_json::to_string(&Value::from([0xff_u8])).unwrap(), r#"{"base64":"/w=="}"#);
        let read = |text: &str| serde_json::from_str::<Value>(&format!(r#"{{"base64":"{text}"}}"#)).ok();
        assert_eq!(read("Zm9vYg=="), Some(Value::from("foob")));
        for wrong in ["Z", "Zg", "Zg=", "Z===", "Zh==", "Zg==Zg==", "Zm9*", "Zm9-", "===="] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn readable_text_stays_readable() {
        assert_eq!(serde_json::to_string(&Value::from(r#"{"epoch":1}"#)).unwrap(), r#""{\"epoch\":1}""#);
    }

    proptest! {
        #[test]
        fn any_bytes_return_from_json_and_grow_by_a_third_at_most(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let json = serde_json::to_string(&Value::from(bytes.clone())).unwrap();
            prop_assert!(json.len() <= bytes.len() * 4 / 3 + 24);
            let back: Value = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(back.as_bytes(), &bytes[..]);
        }

        #[test]
        fn any_text_returns_from_json_and_grows_by_a_third_at_most(text in "[\"\\\\a\u{0}\u{7f}é]{0,60}") {
            let json = serde_json::to_string(&Value::from(text.clone())).unwrap();
            prop_assert!(json.len() <= text.len() * 4 / 3 + 24);
            let back: Value = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(back.as_bytes(), text.as_bytes());
        }
    }
}
