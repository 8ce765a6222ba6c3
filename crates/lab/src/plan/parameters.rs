//! What is filled in before a plan is read: `{name}` in its texts, by its `[parameters]`, by those of the command, and by what the
//! program knows.

use super::PlanFileError;
use std::collections::BTreeMap;
use toml_edit::{DocumentMut, Item, Table, Value};

const PARAMETERS: &str = "parameters";
/// A parameter may name others, so deep.
const DEPTH_MAX: usize = 4;
/// The most that a parameter may become.
const VALUE_BYTES_MAX: usize = 4096;
/// Keys at a plan's top that can be set, whether it has them or not.
const KEYS: [&str; 10] =
    ["name", "title", "note", "rounds", "order", "control", "threads", "baseline", "runtime", "ramp_time"];
/// What is filled in later.
const PLACES: [&str; 4] = ["client", "dir", "subject", "target"];

/// A plan's text with its places filled in. `set` are pairs from the command line: parameters, or keys at the plan's top such as
/// `rounds`. `known` the program knows; they may be named by parameters, and are not theirs to change.
///
/// # Errors
/// It is no TOML, or something is set that it does not have.
pub fn filled_in(
    text: &str,
    known: &BTreeMap<String, String>,
    set: &[(String, String)],
) -> Result<String, PlanFileError> {
    let mut document: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| PlanFileError::Text(error.to_string()))?;
    let mut values = known.clone();
    let own = document.get(PARAMETERS).and_then(Item::as_table);
    let own: Vec<String> =
        own.into_iter().flat_map(|table| table.iter().map(|(key, _)| key.to_owned())).collect();
    for key in &own {
        let value = document[PARAMETERS][key].as_str().ok_or_else(|| {
            PlanFileError::Sense(format!("the parameter {key} is no text; write it between quotes"))
        })?;
        if known.contains_key(key) || PLACES.contains(&key.as_str()) {
            return Err(PlanFileError::Sense(format!(
                "a parameter cannot be called {key}: that has a meaning already"
            )));
        }
        values.insert(key.clone(), value.to_owned());
    }
    for (key, value) in set {
        if own.contains(key) {
            values.insert(key.clone(), value.clone());
        } else if KEYS.contains(&key.as_str()) {
            // As a number if it is one.
            let value = value.parse::<Value>().unwrap_or_else(|_| Value::from(value.as_str()));
            document[key] = Item::Value(value);
        } else {
            return Err(PlanFileError::Sense(format!(
                "the plan has no {key} that could be set; it has {}",
                own.iter().map(String::as_str).chain(KEYS).collect::<Vec<_>>().join(", ")
            )));
        }
    }
    for _ in 0..DEPTH_MAX {
        let before = values.clone();
        values.values_mut().for_each(|value| *value = replaced(value, &before));
        if let Some((key, _)) = values.iter().find(|(_, value)| value.len() > VALUE_BYTES_MAX) {
            return Err(PlanFileError::Sense(format!(
                "the parameter {key} becomes longer than {VALUE_BYTES_MAX} bytes"
            )));
        }
    }
    fill_table(document.as_table_mut(), &values);
    Ok(document.to_string())
}

fn replaced(text: &str, values: &BTreeMap<String, String>) -> String {
    values.iter().fold(text.to_owned(), |text, (key, value)| text.replace(&format!("{{{key}}}"), value))
}

fn fill_table(table: &mut Table, values: &BTreeMap<String, String>) {
    for (_, item) in table.iter_mut() {
        match item {
            Item::Value(value) => fill_value(value, values),
            Item::Table(table) => fill_table(table, values),
            Item::ArrayOfTables(tables) => tables.iter_mut().for_each(|table| fill_table(table, values)),
            Item::None => {}
        }
    }
}

fn fill_value(value: &mut Value, values: &BTreeMap<String, String>) {
    match value {
        Value::String(text) => {
            let filled = replaced(text.value(), values);
            if filled != *text.value() {
                *value = Value::from(filled);
            }
        }
        Value::Array(array) => array.iter_mut().for_each(|value| fill_value(value, values)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "rounds = 6\n[parameters]\nsize = \"1GiB\"\nplace = \"{scratch}/x\"\n[[subject]]\nraw = \"{place}\" # kept\n\
                        sizes = [\"{size}\", \"{client}\"]\n";

    fn filled(set: &[(&str, &str)]) -> Result<String, String> {
        let known = BTreeMap::from([("scratch".to_owned(), "/s".to_owned())]);
        let set: Vec<(String, String)> =
            set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        filled_in(TEXT, &known, &set).map_err(|error| error.to_string())
    }

    #[test]
    fn parameters_are_filled_in_and_what_else_is_in_braces_stays() {
        let text = filled(&[]).unwrap();
        assert!(text.contains("raw = \"/s/x\"") && text.contains("[\"1GiB\", \"{client}\"]"), "{text}");
        assert!(text.contains("rounds = 6"), "{text}");
        let text = filled(&[("size", "2GiB"), ("rounds", "2"), ("place", "/dev/x")]).unwrap();
        assert!(
            text.contains("raw = \"/dev/x\"") && text.contains("\"2GiB\"") && text.contains("rounds = 2"),
            "{text}"
        );
    }

    #[test]
    fn what_a_plan_does_not_have_is_not_set() {
        let error = filled(&[("speed", "11")]).unwrap_err();
        assert!(error.contains("no speed") && error.contains("size, place, name"), "{error}");
        assert!(filled(&[("subject", "x")]).unwrap_err().contains("no subject"));
        assert!(filled(&[("control", "true")]).unwrap().contains("control = true"), "it need not be there");
    }

    #[test]
    fn what_means_something_already_is_no_parameter_and_none_grows_without_end() {
        let fill = |parameters: &str| {
            let known = BTreeMap::from([("scratch".to_owned(), "/s".to_owned())]);
            filled_in(&format!("[parameters]\n{parameters}"), &known, &[]).unwrap_err().to_string()
        };
        assert!(fill("scratch = \"/etc\"").contains("cannot be called scratch"));
        assert!(fill("client = \"7\"").contains("cannot be called client"));
        assert!(fill(&format!("a = \"{}\"", "{a}".repeat(20))).contains("longer than"));
    }
}
