//! `millpond nbd`: volumes for NBD clients.

use crate::Usage;
use crate::commands::serving::{self, ServingArguments};
use crate::host::access;
use crate::host::directory::Directory;
use crate::host::stop;
use crate::output;
use anyhow::bail;
use auth::CertifiedServer;
use clap::Args;
use doors::Listen;
use doors::nbd::gateway::{Gateway, GatewayOptions};
use doors::nbd::{NbdAddress, NbdUri};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use volume::OpenAs;

/// The port of NBD (IANA).
const NBD_PORT: u16 = 10_809;

const EXAMPLES: &str = "\
Examples:
  millpond nbd disk                                    on the socket nbd.sock in the cluster's directory
  millpond nbd disk --listen unix:/run/disk.sock
  millpond nbd disk other --listen tcp:127.0.0.1       two exports on port 10809
  millpond nbd disk --listen tcp:127.0.0.1 --listen tcp:[::1] --listen unix:/run/disk.sock
  millpond nbd archive --read-only                     beside whoever has it attached
  millpond nbd disk --open                             attached by the first write, and given up to the next who writes
  millpond nbd disk --timeout 60s                      an operation that takes longer fails with EIO

Clients then use, for example:
  nbdinfo 'nbd+unix:///disk?socket=./data/nbd.sock'
  qemu-img info 'nbd+unix:///disk?socket=./data/nbd.sock'
  nbd-client -unix ./data/nbd.sock -N disk /dev/nbd0

NBD over TCP has neither passwords nor encryption by itself: whoever reaches the port reads and writes the volumes. So
addresses that other machines reach are refused, unless --tls encrypts and asks each client for its key:
  millpond auth certificate server --host pond.example --out /etc/millpond/tls     (by the cluster's owner)
  millpond nbd disk --listen tcp:0.0.0.0 --tls /etc/millpond/tls
  millpond auth certificate client vm-host-1.key --out vm-host-1-tls                (for each client)
  nbdinfo 'nbds://pond.example/disk?tls-certificates=vm-host-1-tls'
--plain says that all machines that reach it are trusted.";

/// Serve volumes over NBD, until Ctrl-C.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct NbdArguments {
    /// The volumes; each is an export of that name, and if there is one only it is the default export too
    #[arg(required = true, value_name = "VOLUME")]
    pub volumes: Vec<String>,

    /// Where to listen: unix:PATH, or tcp:ADDRESS with or without :PORT; may be given several times [default: unix:DIR/nbd.sock]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_listen)]
    pub listen: Vec<Listen>,

    /// Encrypt what goes over TCP, and serve each client what its key may have: a directory with server-cert.pem and
    /// server-key.pem, as `millpond auth certificate` writes them
    #[arg(long, value_name = "DIR", conflicts_with = "plain")]
    pub tls: Option<PathBuf>,

    /// Listen also where other machines reach it, without encryption: all that do are trusted with the volumes
    #[arg(long)]
    pub plain: bool,

    /// Let other clients attach the volumes at the same time, if they ask for it too
    #[arg(long, conflicts_with = "open")]
    pub shared: bool,

    #[command(flatten)]
    pub serving: ServingArguments,
}

fn parse_listen(text: &str) -> Result<Listen, String> {
    let wrong =
        || format!("{text:?} is no address; write unix:PATH, tcp:127.0.0.1 or tcp:[::1]:10809, for example");
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() { Err(wrong()) } else { Ok(Listen::Unix(path.into())) };
    }
    let address = text.strip_prefix("tcp:").ok_or_else(wrong)?;
    let alone = address.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(address);
    if let Ok(ip) = alone.parse::<IpAddr>() {
        return Ok(Listen::Tcp(SocketAddr::new(ip, NBD_PORT)));
    }
    address.parse().map(Listen::Tcp).map_err(|_| wrong())
}

/// Serves volumes until someone wishes it to stop.
pub fn run(arguments: &NbdArguments, path: &Path) -> anyhow::Result<()> {
    arguments.serving.end_with_parent()?;
    check_reach(&arguments.listen, arguments.plain || arguments.tls.is_some())?;
    let directory = Directory::new(path)?;
    if let Some(name) = named_twice(&arguments.volumes) {
        bail!(Usage(format!("volume {name} is named twice; name each volume once")));
    }
    arguments.volumes.iter().try_for_each(|name| serving::check_name(name))?;
    access::require_up(&directory)?;
    serve(arguments, &directory)
}

fn named_twice(volumes: &[String]) -> Option<&String> {
    let is_again = |(index, name): &(usize, &String)| volumes[..*index].contains(*name);
    volumes.iter().enumerate().find(is_again).map(|(_, name)| name)
}

/// Where it listens. Clients may stand elsewhere when they read a path.
fn places(asked: &[Listen], directory: &Directory) -> std::io::Result<Vec<Listen>> {
    let place = |listen: &Listen| match listen {
        Listen::Unix(path) => std::path::absolute(path).map(Listen::Unix),
        Listen::Tcp(address) => Ok(Listen::Tcp(*address)),
    };
    match asked {
        [] => Ok(vec![Listen::Unix(directory.nbd_socket())]),
        asked => asked.iter().map(place).collect(),
    }
}

/// Nobody serves volumes to a network by accident.
fn check_reach(asked: &[Listen], plain: bool) -> anyhow::Result<()> {
    let open = asked.iter().find(|listen| !listen.is_of_this_machine());
    match open.filter(|_| !plain) {
        None => Ok(()),
        Some(open) => bail!(Usage(format!(
            "other machines reach {open}, and whoever does could read and write the volumes: there are neither passwords nor \
             encryption; encrypt with --tls, listen on tcp:127.0.0.1 or on a Unix socket, or say --plain if all of those machines \
             are trusted"
        ))),
    }
}

fn serve(arguments: &NbdArguments, directory: &Directory) -> anyhow::Result<()> {
    let options = GatewayOptions {
        cluster: directory.access(arguments.serving.key.as_deref())?,
        volumes: arguments.volumes.clone(),
        listen: places(&arguments.listen, directory)?,
        tls: arguments.tls.as_deref().map(CertifiedServer::load).transpose()?,
        open: match arguments.serving.open_as() {
            OpenAs::Owner if arguments.shared => OpenAs::Sharer,
            open => open,
        },
        timeout: arguments.serving.timeout,
    };
    let mut gateway = Gateway::open(&options)?;
    let stopper = gateway.stopper();
    stop::on_wish(move || stopper.stop())?;
    let places: Vec<&Listen> = gateway.places().collect();
    let is_encrypted = options.tls.is_some();
    output::print(&how_to_connect(&options.volumes, arguments.serving.read_only, is_encrypted, &places))?;
    gateway.run()?;
    output::notice("stopping");
    Ok(())
}

fn how_to_connect(volumes: &[String], read_only: bool, is_encrypted: bool, places: &[&Listen]) -> String {
    let on: Vec<String> = places.iter().map(ToString::to_string).collect();
    let mut text = format!("Serving {} on {}", volumes.join(", "), on.join(", "));
    text.push_str(if read_only { ", read-only. Connect to:\n\n" } else { ". Connect to:\n\n" });
    for (place, volume) in places.iter().flat_map(|place| volumes.iter().map(move |volume| (place, volume))) {
        let address = match place {
            Listen::Unix(path) => NbdAddress::Unix(path.clone()),
            Listen::Tcp(address) => NbdAddress::Tcp { host: address.ip().to_string(), port: address.port() },
        };
        let uri = NbdUri { address, export: volume.clone() }.to_string();
        // Only who reaches it by a network encrypts.
        match uri.strip_prefix("nbd://") {
            Some(rest) if is_encrypted => text.push_str(&format!("  nbds://{rest}?tls-certificates=DIR\n")),
            _ => text.push_str(&format!("  {uri}\n")),
        }
    }
    let server = match places[0] {
        Listen::Unix(path) => format!("-unix {}", path.display()),
        Listen::Tcp(address) => format!("{} {}", address.ip(), address.port()),
    };
    text.push_str(&format!(
        "\nAs a block device of this machine, as root: nbd-client {server} -N {} /dev/nbd0\nCtrl-C stops it.\n",
        volumes[0]
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_as_people_write_them() {
        for (text, expected) in [
            ("unix:/run/x.sock", "unix:/run/x.sock"),
            ("tcp:127.0.0.1", "tcp:127.0.0.1:10809"),
            ("tcp:0.0.0.0:9", "tcp:0.0.0.0:9"),
            ("tcp:::1", "tcp:[::1]:10809"),
            ("tcp:[::1]", "tcp:[::1]:10809"),
            ("tcp:[::1]:7", "tcp:[::1]:7"),
        ] {
            assert_eq!(parse_listen(text).unwrap().to_string(), expected);
        }
        for wrong in ["", "unix:", "tcp:", "tcp:host:99999", "/run/x.sock", "udp:1.2.3.4"] {
            assert!(parse_listen(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_invitation_holds_an_address_for_each_volume() {
        let volumes = ["a".to_owned(), "b".to_owned()];
        let text = how_to_connect(&volumes, false, false, &[&Listen::Unix("/run/x.sock".into())]);
        assert!(text.contains("nbd+unix:///b?socket=/run/x.sock"), "{text}");
        let tcp = [7, 8].map(|port| Listen::Tcp(SocketAddr::new("::1".parse().unwrap(), port)));
        let text = how_to_connect(&volumes, true, false, &tcp.each_ref());
        assert!(text.contains("nbd://[::1]:7/a") && text.contains("nbd://[::1]:8/b"), "{text}");
        let text = how_to_connect(&volumes, true, true, &tcp.each_ref());
        assert!(text.contains("nbds://[::1]:7/a?tls-certificates=DIR"), "{text}");
    }

    #[test]
    fn what_other_machines_reach_is_not_listened_on_by_accident() {
        let listen = ["tcp:127.0.0.1", "tcp:0.0.0.0"].map(|text| parse_listen(text).unwrap());
        let refused = check_reach(&listen, false).unwrap_err().to_string();
        assert!(refused.contains("0.0.0.0:10809") && refused.contains("--plain"), "{refused}");
        check_reach(&listen, true).unwrap();
        check_reach(&listen[..1], false).unwrap();
    }

    #[test]
    fn a_volume_named_twice_is_noticed() {
        let volumes = ["a", "b", "a"].map(str::to_owned);
        assert_eq!(named_twice(&volumes), Some(&volumes[2]));
        assert_eq!(named_twice(&volumes[..2]), None);
    }

    #[test]
    fn it_listens_in_the_cluster_s_directory_unless_told_otherwise() {
        let directory = Directory::new(Path::new("/pond")).unwrap();
        assert_eq!(places(&[], &directory).unwrap(), [Listen::Unix("/pond/nbd.sock".into())]);
    }
}
