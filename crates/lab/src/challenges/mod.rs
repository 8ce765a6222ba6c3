//! Plans that come with the program, with what others have published beside.

/// A plan's name and text.
pub const ALL: [(&str, &str); 10] = [
    ("10k", include_str!("10k.toml")),
    ("16-clients", include_str!("16-clients.toml")),
    ("100-volumes", include_str!("100-volumes.toml")),
    ("failover", include_str!("failover.toml")),
    ("layers", include_str!("layers.toml")),
    ("one-machine", include_str!("one-machine.toml")),
    ("qos", include_str!("qos.toml")),
    ("releases", include_str!("releases.toml")),
    ("scale", include_str!("scale.toml")),
    ("why-slow", include_str!("why-slow.toml")),
];

/// What lies beside a plan in its `{scratch}` when it is run: names and contents.
pub const FILES: [(&str, &str); 1] = [("guest.sh", include_str!("guest.sh"))];

/// The text of the one of that name.
#[must_use]
pub fn named(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, filled_in};
    use std::collections::BTreeMap;

    #[test]
    fn each_is_a_plan_of_its_name_once_its_places_are_filled_in() {
        let known = BTreeMap::from([
            ("scratch".to_owned(), "/scratch".to_owned()),
            ("millpond".to_owned(), "/bin/millpond".to_owned()),
        ]);
        for (name, text) in ALL {
            let text = filled_in(text, &known, &[]).unwrap();
            let plan = Plan::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(plan.name, name);
            assert!(plan.title.is_some() && plan.note.is_some(), "{name}");
            assert!(!text.replace("{client}", "").replace("{dir}", "").contains("{scratch}"), "{name}");
        }
        assert!(named("10k").is_some() && named("10m").is_none());
    }
}
