//! `millpond osd`: the OSDs with their nodes and drives, their coming and going, and the erasing of a drive.

use crate::args::ListArguments;
use crate::commands::last_copy::GivenUp;
use crate::commands::membership::{self, AddArguments};
use crate::commands::replacement::{self, ReplaceArguments};
use crate::host::access;
use crate::output::{self, table};
use anyhow::{Context, bail};
use base::OsdId;
use base::map::{Admission, DeviceClass, Reweight};
use base::units::ByteSize;
use clap::Subcommand;
use drive::{Drive, Use};
use health::view::OsdView;
use std::path::{Path, PathBuf};
use store::Device;

/// What can be done with OSDs.
#[derive(Subcommand, Clone, Debug)]
pub enum OsdCommand {
    /// Show where the nodes stand, as far as that is known, and their OSDs
    #[command(after_help = "Examples:\n  millpond osd tree\n  millpond osd tree --json | jq '.[].pid'")]
    Tree(ListArguments),
    /// Make another OSD on a drive while everything runs; its part of the data is moved onto it
    #[command(
        after_help = "Examples:\n  millpond osd add --device /dev/nvme3n1\n  millpond osd add --size 8GiB --node 3    \
                            a file in the cluster's directory, on a node of its own"
    )]
    Add(AddArguments),
    /// Place no data on an OSD any more: what it holds is moved to others. It goes on serving meanwhile
    #[command(after_help = "Examples:\n  millpond osd out 3\n  millpond osd out osd.3\n  \
                            millpond status --watch    shows what is still to be moved off it")]
    Out {
        /// The OSD: its number, or osd.NUMBER
        #[arg(value_name = "ID", value_parser = parse_osd)]
        osd: OsdId,
        /// Do it even if too few OSDs are left for the copies of some pool, which then keeps fewer
        #[arg(long)]
        allow_fewer_copies: bool,
    },
    /// Place data on an OSD again that was taken out
    #[command(after_help = "Examples:\n  millpond osd in 3\n  millpond osd in osd.3")]
    In {
        /// The OSD: its number, or osd.NUMBER
        #[arg(value_name = "ID", value_parser = parse_osd)]
        osd: OsdId,
    },
    /// Remove an OSD for good that is out and holds nothing any more, or that is lost. Its drive is left as it is
    #[command(after_help = "Examples:\n  millpond osd out 3    first: what it holds is moved to others\n  \
                            millpond osd rm 3\n  millpond osd rm osd.3")]
    Rm {
        /// The OSD: its number, or osd.NUMBER
        #[arg(value_name = "ID", value_parser = parse_osd)]
        osd: OsdId,
        #[command(flatten)]
        given_up: GivenUp,
    },
    /// Have an OSD that cannot be started go on on a blank drive, under its number: where its own was, or elsewhere. The other
    /// OSDs bring back what it shall hold
    #[command(
        after_help = "It is run on the machine that the drive is in, and may be run again if it broke off.\n\n\
                            Examples:\n  millpond osd replace 3                           on the drive that it was on, or \
                            another one in its place\n  millpond osd replace 3 --drive /dev/nvme3n1\n  \
                            millpond osd replace 3 --erase                   what is on that drive is lost, whosever it is\n  \
                            millpond osd replace 3 --lose-last-copy-of fast  nobody else has what it held of pool fast"
    )]
    Replace(ReplaceArguments),
    /// Have an OSD hold less than its size says: a factor from 0 to 1. Its replicas move until it is so
    #[command(
        after_help = "Examples:\n  millpond osd reweight 3 0.8    four fifths of what its size says\n  \
                            millpond osd reweight 3 1      as much as its size says\n  \
                            millpond osd reweight 3 0      nothing; but it counts as in, unlike after `osd out`"
    )]
    Reweight {
        /// The OSD: its number, or osd.NUMBER
        #[arg(value_name = "ID", value_parser = parse_osd)]
        osd: OsdId,
        /// From 0 to 1, with at most three decimals
        factor: Reweight,
    },
    /// Say what kind of drive an OSD is on, where it is not found out rightly
    #[command(after_help = "Pools made with --device-class lie on OSDs of that class alone.\n\n\
                            Examples:\n  millpond osd class 3 nvme\n  \
                            millpond osd class 3 auto    what the kernel says of its drive, as without this")]
    Class {
        /// The OSD: its number, or osd.NUMBER
        #[arg(value_name = "ID", value_parser = parse_osd)]
        osd: OsdId,
        /// nvme, ssd or hdd; auto for what the kernel says
        #[arg(value_parser = parse_class)]
        class: GivenClass,
    },
    /// Erase a drive, so that it can become another OSD. What it holds is lost
    #[command(
        after_help = "Examples:\n  millpond osd wipe /dev/nvme1n1         shows what would be lost\n  \
                            millpond osd wipe /dev/nvme1n1 --yes"
    )]
    Wipe {
        /// The block device or file
        path: PathBuf,
        /// Really do it
        #[arg(long)]
        yes: bool,
    },
}

/// Performs an `osd` command.
pub fn run(command: &OsdCommand, directory: &Path) -> anyhow::Result<()> {
    match command {
        OsdCommand::Tree(arguments) => {
            let osds = access::with_inquiry(directory, async |inquiry| inquiry.osds().await)?;
            output::show(arguments.json, &osds, || tree(&osds))
        }
        OsdCommand::Add(arguments) => membership::add(arguments, directory),
        OsdCommand::Out { osd, allow_fewer_copies } => membership::out(*osd, *allow_fewer_copies, directory),
        OsdCommand::In { osd } => membership::take_in(*osd, directory),
        OsdCommand::Rm { osd, given_up } => membership::remove(*osd, given_up, directory),
        OsdCommand::Replace(arguments) => replacement::replace(arguments, directory),
        OsdCommand::Reweight { osd, factor } => reweight(*osd, *factor, directory),
        OsdCommand::Class { osd, class } => set_class(*osd, *class, directory),
        OsdCommand::Wipe { path, yes } => wipe(path, *yes),
    }
}

pub fn parse_osd(text: &str) -> Result<OsdId, String> {
    let number = text.strip_prefix("osd.").unwrap_or(text);
    let wrong = |_| format!("{text:?} names no OSD; write its number, for example 3 or osd.3");
    number.parse().map(OsdId).map_err(wrong)
}

/// A class that a person gives to an OSD, or takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenClass(Option<DeviceClass>);

fn parse_class(text: &str) -> Result<GivenClass, String> {
    if text == "auto" {
        return Ok(GivenClass(None));
    }
    text.parse().map(|class| GivenClass(Some(class))).map_err(|error| format!("{error}, or auto"))
}

/// `millpond osd reweight`.
fn reweight(osd: OsdId, factor: Reweight, directory: &Path) -> anyhow::Result<()> {
    let before =
        access::with_cluster(directory, async |cluster| Ok(cluster.set_reweight(osd, factor).await?))?;
    output::print_line(&match before == factor {
        true => format!("{osd} has the factor {factor} already"),
        false => format!(
            "{osd} shall hold {factor} of what its size says, and was at {before}; `millpond status --watch` shows what \
             moves"
        ),
    })
}

/// `millpond osd class`.
fn set_class(osd: OsdId, GivenClass(class): GivenClass, directory: &Path) -> anyhow::Result<()> {
    let now =
        access::with_cluster(directory, async |cluster| Ok(cluster.set_device_class(osd, class).await?))?;
    let by = if class.is_some() { "whatever the kernel says of its drive" } else { "as the kernel says" };
    output::print_line(&format!("{osd} is of class {now}, {by}"))
}

fn tree(osds: &[OsdView]) -> String {
    if osds.is_empty() {
        return "no OSDs yet\n".to_owned();
    }
    // Levels that nobody named are not shown: on one machine there are nodes and OSDs.
    type Level = (&'static str, fn(&OsdView) -> Option<String>);
    let levels: [Level; 4] = [
        ("REGION", |osd| osd.location.region.clone()),
        ("ZONE", |osd| osd.location.zone.clone()),
        ("RACK", |osd| osd.location.rack.clone()),
        ("HOST", |osd| Some(osd.host.clone()).filter(|host| *host != osd.node.to_string())),
    ];
    let levels: Vec<Level> =
        levels.into_iter().filter(|(_, name)| osds.iter().any(|osd| name(osd).is_some())).collect();
    let place = |osd: &OsdView| -> Vec<Option<String>> { levels.iter().map(|(_, name)| name(osd)).collect() };
    let mut headings: Vec<&str> = levels.iter().map(|(heading, _)| *heading).collect();
    headings.extend([
        "NODE", "OSD", "CLASS", "STATE", "DATA", ">SIZE", ">WEIGHT", ">USED", ">PGS", ">PRIMARY", ">PID",
        "ADDRESS", "DRIVE",
    ]);
    let unknown = || "-".to_owned();
    let mut ordered: Vec<&OsdView> = osds.iter().collect();
    ordered.sort_by_key(|osd| (place(osd), osd.node, osd.osd));
    let mut above: Vec<Option<String>> = Vec::new();
    let row = |osd: &OsdView| {
        let mut here = place(osd);
        here.push(Some(osd.node.to_string()));
        // What is as in the row above is left out, up to where they part.
        let same = here.iter().zip(&above).take_while(|(name, above)| name == above).count();
        let mut cells = vec![String::new(); same];
        cells.extend(here[same..].iter().map(|name| name.clone().unwrap_or_else(unknown)));
        above = here;
        let state = match (osd.up, osd.full) {
            (false, _) => "down",
            (true, Some(true)) => "full",
            (true, _) => "up",
        };
        let weight = Reweight::from_thousandths(osd.reweight_thousandths).unwrap_or_default();
        cells.extend([
            osd.osd.to_string(),
            osd.device_class.to_string(),
            state.to_owned(),
            admission(osd.admission).to_owned(),
            ByteSize(osd.bytes).to_string(),
            weight.to_string(),
            osd.used_bytes.map_or_else(unknown, |bytes| ByteSize(bytes).to_string()),
            osd.pgs.to_string(),
            osd.primary_of.to_string(),
            osd.pid.map_or_else(unknown, |pid| pid.to_string()),
            osd.address.map_or_else(unknown, |address| address.to_string()),
            osd.path.clone().unwrap_or_else(unknown),
        ]);
        cells
    };
    table::render(&headings, ordered.into_iter().map(row))
}

fn admission(admission: Admission) -> &'static str {
    match admission {
        Admission::In => "in",
        Admission::Out => "out",
        Admission::OutWhileDown => "out while down",
    }
}

/// Erases a drive that nobody uses.
fn wipe(path: &Path, yes: bool) -> anyhow::Result<()> {
    let shown = path.display();
    let mut drive = Drive::open(path, Use::Alone)?;
    if !yes {
        let content = drive.content()?.unwrap_or("nothing that millpond recognises");
        bail!("{shown}: {} with {content} would be erased; to do it, add --yes", ByteSize(drive.bytes()));
    }
    drive.erase().with_context(|| format!("{shown}: cannot erase it"))?;
    output::print_line(&format!("{shown}: erased"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::NodeId;
    use base::map::{ClusterMap, Location, NodeInfo, OsdInfo};

    #[test]
    fn an_osd_is_named_by_its_number_or_its_name() {
        assert_eq!(parse_osd("3"), Ok(OsdId(3)));
        assert_eq!(parse_osd("osd.3"), Ok(OsdId(3)));
        for wrong in ["", "osd.", "osd.x", "-1", "node.3"] {
            assert!(parse_osd(wrong).unwrap_err().contains("osd.3"), "{wrong}");
        }
    }

    #[test]
    fn the_tree_shows_the_levels_that_have_names() {
        let mut map = ClusterMap::default();
        for osd in 0..4 {
            let info = OsdInfo { node: NodeId(osd / 2), bytes: 8 << 30, ..OsdInfo::default() };
            map.osds.insert(OsdId(osd), info);
        }
        let shown = |map: &ClusterMap| tree(&health::view::osds(map, &health::view::Reports::default(), 0));
        let first_cells = |text: &str, cells: usize| -> Vec<String> {
            let of_line = |line: &str| line.split_whitespace().take(cells).collect::<Vec<_>>().join(" ");
            text.lines().map(of_line).collect()
        };
        assert_eq!(
            first_cells(&shown(&map), 2),
            ["NODE OSD", "node.0 osd.0", "osd.1 ssd", "node.1 osd.2", "osd.3 ssd"]
        );
        let location = Location { rack: Some("r1".to_owned()), ..Location::default() };
        map.nodes.insert(NodeId(1), NodeInfo { host: "alpha".to_owned(), location, ..NodeInfo::default() });
        map.osds.get_mut(&OsdId(3)).unwrap().reweight = "0.8".parse().unwrap();
        let text = shown(&map);
        assert_eq!(
            first_cells(&text, 4),
            [
                "RACK HOST NODE OSD",
                "- - node.0 osd.0",
                "osd.1 ssd down in",
                "r1 alpha node.1 osd.2",
                "osd.3 ssd down in"
            ]
        );
        assert!(text.lines().last().unwrap().contains("8GiB     0.8"), "{text}");
    }

    #[test]
    fn a_class_is_one_of_those_there_are_or_taken_back() {
        assert_eq!(parse_class("hdd"), Ok(GivenClass(Some(DeviceClass::Hdd))));
        assert_eq!(parse_class("auto"), Ok(GivenClass(None)));
        assert!(parse_class("floppy").unwrap_err().contains("nvme, ssd, hdd, or auto"));
    }
}
