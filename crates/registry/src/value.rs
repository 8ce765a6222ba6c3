//! A value as bytes, shared between the state, the history and the answers without copying.

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
            None => Encoded { base64: encode_base64(&self.0) }.serialize(serializer),
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
            Form::Encoded(encoded) => decode_base64(&encoded.base64)
                .map(Value::from)
                .ok_or_else(|| serde::de::Error::custom("a value is not valid base64")),
        }
    }
}

/// The alphabet of RFC 4648 section 4.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes(word);
        for place in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let last = (text.len() / 4).saturating_sub(1);
    for (index, quad) in text.chunks_exact(4).enumerate() {
        let padding = quad.iter().rev().take_while(|&&digit| digit == b'=').count();
        if padding > 2 || (padding > 0 && index != last) {
            return None;
        }
        let mut bits = 0u32;
        for &digit in &quad[..4 - padding] {
            bits = bits << 6 | digit_value(digit)?;
        }
        bits <<= 6 * padding;
        let word = bits.to_be_bytes();
        if word[4 - padding..].iter().any(|&byte| byte != 0) {
            return None;
        }
        bytes.extend_from_slice(&word[1..4 - padding]);
    }
    Some(bytes)
}

fn digit_value(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn base64_gives_the_published_vectors() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ];
        for (plain, encoded) in vectors {
            assert_eq!(encode_base64(plain.as_bytes()), encoded);
            assert_eq!(decode_base64(encoded).unwrap(), plain.as_bytes());
        }
        for wrong in ["Z", "Zg=", "Z===", "Zh==", "Zg==Zg==", "Zm9*", "===="] {
            assert_eq!(decode_base64(wrong), None, "{wrong}");
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
