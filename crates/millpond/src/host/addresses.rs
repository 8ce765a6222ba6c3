//! The addresses at which a node of this machine is reached, as they are given on a command line and in a file.

use crate::Usage;
use anyhow::{Context, bail};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use toml_edit::Value;

/// One address of this machine or several, none of them twice; the one that is preferred first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Vec<IpAddr>);

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses(vec![Ipv4Addr::LOCALHOST.into()])
    }
}

impl Addresses {
    /// These, if there is one, and none twice.
    fn new(addresses: Vec<IpAddr>) -> Result<Addresses, String> {
        let is_again = |(index, address): &(usize, &IpAddr)| addresses[..*index].contains(*address);
        if let Some((_, address)) = addresses.iter().enumerate().find(is_again) {
            return Err(format!("{address} is given twice; give each address once"));
        }
        match addresses.is_empty() {
            true => Err("no address is given; give one at which the others reach this machine".to_owned()),
            false => Ok(Addresses(addresses)),
        }
    }

    /// What `--listen` was given, once or several times: addresses of this machine that others can reach it at.
    pub fn of_flags(given: &[IpAddr]) -> anyhow::Result<Addresses> {
        let addresses =
            Addresses::new(given.to_vec()).map_err(|wrong| Usage(format!("--listen: {wrong}")))?;
        addresses.0.iter().try_for_each(|address| check(*address))?;
        Ok(addresses)
    }

    /// All of them.
    pub fn all(&self) -> &[IpAddr] {
        &self.0
    }

    /// The flags that tell them to a process.
    pub fn to_flags(&self) -> impl Iterator<Item = OsString> {
        self.0.iter().flat_map(|address| [OsString::from("--listen"), address.to_string().into()])
    }

    /// As a value of a file: one alone as a text, several as a list.
    pub fn to_value(&self) -> Value {
        match self.0.as_slice() {
            [one] => one.to_string().into(),
            several => Value::from_iter(several.iter().map(IpAddr::to_string)),
        }
    }
}

/// Whether others can reach this machine at an address.
fn check(address: IpAddr) -> anyhow::Result<()> {
    if address.is_unspecified() {
        bail!(Usage(format!(
            "--listen {address}: the others need to know each address; name those that they reach this host at, with one \
             --listen for each"
        )));
    }
    std::net::TcpListener::bind((address, 0))
        .map(drop)
        .with_context(|| format!("--listen {address}: is not an address of this host"))
}

impl fmt::Display for Addresses {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(IpAddr::to_string).collect();
        formatter.write_str(&texts.join(" and "))
    }
}

impl<'de> Deserialize<'de> for Addresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Addresses, D::Error> {
        deserializer.deserialize_any(AddressesVisitor)
    }
}

struct AddressesVisitor;

impl<'de> Visitor<'de> for AddressesVisitor {
    type Value = Addresses;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an IP address, or a list of them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Addresses, E> {
        Ok(Addresses(vec![text.parse().map_err(E::custom)?]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Addresses, A::Error> {
        let mut addresses = Vec::new();
        while let Some(address) = sequence.next_element()? {
            addresses.push(address);
        }
        Addresses::new(addresses).map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(given: &[&str]) -> anyhow::Error {
        let given: Vec<IpAddr> = given.iter().map(|text| text.parse().unwrap()).collect();
        Addresses::of_flags(&given).unwrap_err()
    }

    #[test]
    fn several_addresses_of_this_machine_are_taken_in_their_order() {
        let given = ["127.0.0.2", "127.0.0.1"].map(|text| text.parse::<IpAddr>().unwrap());
        let addresses = Addresses::of_flags(&given).unwrap();
        assert_eq!(addresses.all(), given);
        assert_eq!(addresses.to_string(), "127.0.0.2 and 127.0.0.1");
        let flags: Vec<OsString> = addresses.to_flags().collect();
        assert_eq!(flags, ["--listen", "127.0.0.2", "--listen", "127.0.0.1"]);
        assert_eq!(addresses.to_value().to_string().trim(), r#"["127.0.0.2", "127.0.0.1"]"#);
        assert_eq!(Addresses::default().to_value().to_string().trim(), r#""127.0.0.1""#);
    }

    #[test]
    fn an_address_that_cannot_be_is_refused_by_name() {
        for (given, words, is_usage) in [
            (&["127.0.0.1", "::1", "127.0.0.1"][..], "--listen: 127.0.0.1 is given twice", true),
            (&[][..], "--listen: no address is given", true),
            (&["127.0.0.1", "0.0.0.0"][..], "--listen 0.0.0.0: the others need to know each", true),
            (&["127.0.0.1", "192.0.2.1"][..], "--listen 192.0.2.1: is not an address of this host", false),
        ] {
            let refusal = refusal(given);
            assert!(refusal.to_string().contains(words), "{refusal}");
            assert_eq!(refusal.is::<Usage>(), is_usage, "{refusal}");
        }
    }
}
