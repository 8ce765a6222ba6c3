//! A value of a plan, or several.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

/// One value or a list of them, each a number or a text that is read as the command line reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Many<T>(pub Vec<T>);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Many<T>, D::Error> {
        deserializer.deserialize_any(OneOrMore(PhantomData))
    }
}

struct OneOrMore<T>(PhantomData<T>);

fn read<T: FromStr<Err: Display>, E: Error>(text: &str) -> Result<T, E> {
    // Options of the command line are named with hyphens before them, keys are not.
    text.parse().map_err(|error: T::Err| {
        E::custom(format!("{text:?} is no value of this key: {}", error.to_string().replace("--", "")))
    })
}

impl<'de, T: FromStr<Err: Display>> Visitor<'de> for OneOrMore<T> {
    type Value = Many<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value or a list of values")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Many<T>, E> {
        Ok(Many(vec![read(text)?]))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Many<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Many<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Many<T>, A::Error> {
        let mut values = Vec::new();
        while let Some(Many(one)) = list.next_element::<Many<T>>()? {
            values.extend(one);
        }
        if values.is_empty() {
            return Err(A::Error::custom("the list is empty; give at least one value"));
        }
        Ok(Many(values))
    }
}
