//! Lives that go by a script: one thing happens after the other, so that what must not be is sure to be tried. Whom it meets,
//! which block, and with which content is drawn by the seed, and so are the times of messages and drives.

mod catching_up;
mod limits;
mod malice;
mod removal;
mod replacement;
mod sizes;
mod snapshots;
mod without_registry;

use super::Report;
use super::atlas::look;
use super::client::{Step, Work, all_of};
use super::history::Kind;
use super::hostile::Malice;
use super::life::Life;
use super::plan::Plan;
use super::registry::{POOL, volume_id};
use super::world::{Event, MILLISECOND, Process, SECOND};
use crate::contents::{Collision, Contents};
use crate::random::Random;
use base::{BLOCK_BYTES, OBJECT_BLOCKS, ObjectKey, OsdId, SECTOR_BYTES};

/// What happens in a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// A member is away until all logs have gone past it, and everything that it has is written over by blocks of the same
    /// checksums. It comes back and catches up, the others die, it leads, and it is read whole.
    AwayPastTheLog,
    /// A primary writes what the other members do not get, for they are cut off, and dies with its client. What it wrote comes
    /// to nothing, and is written over by nobody. It comes back when all logs have gone past it.
    PartedAndAway,
    /// Of two members one is away in the same way, and a block of the other rots. When both are there again, one has a block
    /// that does not verify, and the other an older version that has the checksum which is wanted.
    RottenWhileAway,
    /// Of two members one goes away when a block has just been mended that was written longer ago than any log tells. The same
    /// block of the other rots when all logs have gone past that. Who was away has the only sound copy, and nothing was written
    /// there since.
    MendedBeforeItRots,
    /// Blocks rot on the members that lead their groups, and are read. Nobody scrubs.
    MendedByReads,
    /// A member's copy of a block is another than that of the others, with the same CRC-32C and CRC-64, and a deep scrub
    /// looks for that.
    ForgedBehindChecksums,
    /// The drive of a member that is away is replaced. Then an operator wants to do the same with the only other one, which has
    /// everything and is down just then.
    DriveReplaced,
    /// A pool is removed while a member is away, which comes back.
    PoolRemovedWhileAway,
    /// A volume is.
    VolumeRemovedWhileAway,
    /// A volume is made smaller and larger again while clients work on it and nodes die.
    ResizedUnderLoad,
    /// A volume is limited while clients want more and nodes die.
    LimitedUnderLoad,
    /// Snapshots are made, and one of two clients that share volumes does not hear of it.
    SnapshotsOutOfTouch,
    /// Writes are done, and their client is not told. It sends them again when others have written there, and the logs have
    /// gone past that.
    RepeatedPastTheLog,
    /// A member that missed everything is brought up to date by another one that was brought up to date itself.
    CaughtUpFromWhoCaughtUp,
    /// Of two members one is away, and the drive of the other is lost. What was on it is given up, and written anew with fewer
    /// writes than before; or that twice. Who was away comes back, with all that was given up.
    GivenUpAndBack,
    /// A member that missed everything of many objects is broken off again and again while it is brought up to date.
    BrokenOffCatchingUp,
    /// A member in sync misses everything and joins while it writes a checkpoint of many objects, and dies when that counts.
    JoinsBesideACheckpoint,
    /// A primary does not reach the registry for long, and everybody else reaches both.
    PrimaryCutOff,
    /// The registry is away from all while a member catches up.
    CaughtUpWithoutRegistry,
    /// The drive of a member, perhaps of a primary, does nothing for long of what it is asked, or writes nothing, and says
    /// nothing of it.
    DriveDoesNothing,
    /// A client with the key of another pool means harm while others work.
    HostileClient,
    /// Somebody with the key of an OSD that holds nothing does.
    HostileStranger,
    /// Somebody with the key of a member does.
    HostileMember,
    /// Somebody with the key of a member that leads groups is after the others, and all start anew behind that.
    HostileLeader,
}

/// How long anything may take.
const LIMIT: u64 = 60 * SECOND;
/// How long who was stopped stays away, unless it is started.
const FOR_EVER: u64 = 3600 * SECOND;
/// Writes that a primary takes and that come to nothing.
const LOST_WRITES: usize = 40;
/// How long it takes them.
const LOST_WRITES_TIME: u64 = 300 * MILLISECOND;
/// How many blocks rot one after the other where they are read.
const ROTS: usize = 8;
/// Places of a volume that is spread over many objects, two for each.
const MANY_REGIONS: u64 = 80;
/// The same for a volume whose objects' pages take more batches than are written while a member joins, and the log between two
/// checkpoints, in segments, in which nearly all of them change.
const CHECKPOINT_REGIONS: u64 = 480;
const CHECKPOINT_SEGMENTS: u64 = 20;
/// How often everything is written in order to get past logs.
const ROUNDS_MAX: usize = 200;

impl Scenario {
    /// All of them.
    pub const ALL: [Scenario; 24] = [
        Scenario::AwayPastTheLog,
        Scenario::PartedAndAway,
        Scenario::RottenWhileAway,
        Scenario::MendedBeforeItRots,
        Scenario::MendedByReads,
        Scenario::ForgedBehindChecksums,
        Scenario::DriveReplaced,
        Scenario::PoolRemovedWhileAway,
        Scenario::VolumeRemovedWhileAway,
        Scenario::ResizedUnderLoad,
        Scenario::LimitedUnderLoad,
        Scenario::SnapshotsOutOfTouch,
        Scenario::RepeatedPastTheLog,
        Scenario::CaughtUpFromWhoCaughtUp,
        Scenario::GivenUpAndBack,
        Scenario::BrokenOffCatchingUp,
        Scenario::JoinsBesideACheckpoint,
        Scenario::PrimaryCutOff,
        Scenario::CaughtUpWithoutRegistry,
        Scenario::DriveDoesNothing,
        Scenario::HostileClient,
        Scenario::HostileStranger,
        Scenario::HostileMember,
        Scenario::HostileLeader,
    ];

    pub(super) fn plan(self, random: &mut Random) -> Plan {
        let nodes = match self {
            Scenario::AwayPastTheLog
            | Scenario::PartedAndAway
            | Scenario::ResizedUnderLoad
            | Scenario::SnapshotsOutOfTouch => random.choose(&[2, 3]),
            Scenario::RottenWhileAway | Scenario::MendedBeforeItRots | Scenario::GivenUpAndBack => 2,
            Scenario::MendedByReads
            | Scenario::BrokenOffCatchingUp
            | Scenario::JoinsBesideACheckpoint
            | Scenario::CaughtUpWithoutRegistry => random.choose(&[2, 3]),
            Scenario::DriveReplaced => 2,
            Scenario::LimitedUnderLoad
            | Scenario::ForgedBehindChecksums
            | Scenario::PoolRemovedWhileAway
            | Scenario::VolumeRemovedWhileAway
            | Scenario::RepeatedPastTheLog
            | Scenario::CaughtUpFromWhoCaughtUp
            | Scenario::PrimaryCutOff
            | Scenario::DriveDoesNothing
            | Scenario::HostileClient
            | Scenario::HostileStranger
            | Scenario::HostileMember
            | Scenario::HostileLeader => 3,
        };
        let mut plan = Plan::scripted(nodes, random);
        match self {
            Scenario::ForgedBehindChecksums => {
                plan.contents = Contents::Colliding(Collision { of_both: true, ..Collision::draw(random) });
            }
            // More than a log of that length lets a group have under way, and blocks for all of it.
            Scenario::PartedAndAway => {
                plan.clients = 2;
                (plan.depth, plan.region_blocks) = (LOST_WRITES, 3 * LOST_WRITES as u64);
                (plan.small_buffers, plan.large_buffers) = (2 * LOST_WRITES, 2 * LOST_WRITES + 4);
            }
            Scenario::PoolRemovedWhileAway => (plan.volumes, plan.has_doomed_pool) = (2, true),
            Scenario::VolumeRemovedWhileAway => plan.volumes = 2,
            Scenario::ResizedUnderLoad => {
                (plan.clients, plan.volumes, plan.regions) = (2, 2, 2);
                (plan.small_buffers, plan.large_buffers) = (64, 24);
                if random.percent(60) {
                    // Most ends lie within blocks of drives then.
                    plan.unit_bytes = SECTOR_BYTES as u64;
                    plan.region_blocks *= (BLOCK_BYTES / SECTOR_BYTES) as u64;
                    plan.operation_blocks_max *= 3;
                    plan.contents = Contents::Plain;
                }
            }
            Scenario::LimitedUnderLoad => {
                (plan.clients, plan.volumes, plan.regions, plan.pgs) = (2, 2, 2, 4);
                (plan.small_buffers, plan.large_buffers) = (64, 24);
            }
            Scenario::RepeatedPastTheLog => plan.clients = 2,
            Scenario::SnapshotsOutOfTouch => (plan.clients, plan.regions, plan.snapshots) = (2, 2, true),
            Scenario::DriveReplaced => {}
            Scenario::BrokenOffCatchingUp => {
                // So many that a member is told how far it got, more than once, before it is done.
                (plan.pgs, plan.regions, plan.region_blocks) = (1, MANY_REGIONS, 2);
                plan.volume_objects = 3 * MANY_REGIONS + 3;
            }
            Scenario::JoinsBesideACheckpoint => {
                (plan.pgs, plan.regions, plan.region_blocks) = (1, CHECKPOINT_REGIONS, 2);
                plan.volume_objects = 3 * CHECKPOINT_REGIONS + 3;
                (plan.segments, plan.checkpoint_segments) = (96, CHECKPOINT_SEGMENTS);
            }
            Scenario::HostileClient
            | Scenario::HostileStranger
            | Scenario::HostileMember
            | Scenario::HostileLeader => {
                plan.clients = 2;
                plan = plan.with_malice(self.malice().expect("these have somebody who means harm"));
                if self == Scenario::HostileLeader {
                    // Objects of several groups, of which nobody leads all.
                    (plan.pgs, plan.regions) = (4, 2);
                }
            }
            Scenario::AwayPastTheLog
            | Scenario::RottenWhileAway
            | Scenario::MendedBeforeItRots
            | Scenario::MendedByReads
            | Scenario::CaughtUpFromWhoCaughtUp
            | Scenario::GivenUpAndBack
            | Scenario::PrimaryCutOff
            | Scenario::DriveDoesNothing
            | Scenario::CaughtUpWithoutRegistry => {}
        }
        plan
    }

    /// Who means harm, if somebody does.
    fn malice(self) -> Option<Malice> {
        match self {
            Scenario::HostileClient => Some(Malice::Client),
            Scenario::HostileStranger => Some(Malice::Stranger),
            Scenario::HostileMember => Some(Malice::Member),
            Scenario::HostileLeader => Some(Malice::Leader),
            _ => None,
        }
    }
}

/// A block of the volume.
#[derive(Clone, Copy, Debug)]
struct Spot {
    in_volume: u64,
    key: ObjectKey,
    block: u16,
}

impl Life {
    /// The life of a script.
    pub(super) fn play(&mut self, scenario: Scenario) -> Result<Report, String> {
        self.world.story(None, || format!("{scenario:?}: {:?}", self.world.plan));
        self.world.is_calm = true;
        let clients = self.world.plan.clients;
        for client in &mut self.clients[..clients] {
            client.work = Work::List(Vec::new());
        }
        for index in 0..self.nodes.len() + clients {
            let delay = self.world.random.below(50 * MILLISECOND);
            self.world.after(delay, Event::Start(Process(index)));
        }
        self.world.after(SECOND, Event::LeaseCheck);
        self.wait("the begin of the cluster", Life::has_healed)?;
        self.do_all(Kind::Write, self.world.plan.operation_blocks_max)?;
        match scenario {
            Scenario::RepeatedPastTheLog => self.repeated_past_the_log()?,
            Scenario::CaughtUpFromWhoCaughtUp => self.caught_up_from_who_caught_up()?,
            Scenario::GivenUpAndBack => self.given_up_and_back()?,
            Scenario::BrokenOffCatchingUp => self.broken_off_catching_up()?,
            Scenario::JoinsBesideACheckpoint => self.joins_beside_a_checkpoint()?,
            Scenario::PrimaryCutOff => self.primary_cut_off()?,
            Scenario::DriveDoesNothing => self.drive_does_nothing()?,
            Scenario::CaughtUpWithoutRegistry => self.caught_up_while_the_registry_is_away()?,
            Scenario::HostileClient => self.work_beside_malice(Malice::Client)?,
            Scenario::HostileStranger => self.work_beside_malice(Malice::Stranger)?,
            Scenario::HostileMember => self.work_beside_malice(Malice::Member)?,
            Scenario::HostileLeader => {
                self.work_beside_malice(Malice::Leader)?;
                self.all_start_anew()?;
            }
            Scenario::AwayPastTheLog => self.away_past_the_log()?,
            Scenario::DriveReplaced => self.drive_replaced()?,
            Scenario::PartedAndAway => self.parted_and_away()?,
            Scenario::RottenWhileAway => self.rotten_while_away()?,
            Scenario::MendedBeforeItRots => self.mended_before_it_rots()?,
            Scenario::MendedByReads => self.mended_by_reads()?,
            Scenario::ForgedBehindChecksums => self.forged_behind_checksums()?,
            Scenario::PoolRemovedWhileAway => self.removed_while_away(true)?,
            Scenario::VolumeRemovedWhileAway => self.removed_while_away(false)?,
            Scenario::ResizedUnderLoad => self.resized_under_load()?,
            Scenario::LimitedUnderLoad => self.limited_under_load()?,
            Scenario::SnapshotsOutOfTouch => self.snapshots_out_of_touch()?,
        }
        self.wait("that the cluster is whole", Life::has_healed)?;
        self.read_back()?;
        self.remove_all_snapshots()?;
        self.check_agreement()?;
        self.scrub_everything(true)?;
        self.wait("that the cluster is whole in the end", Life::has_healed)?;
        self.check_everything()?;
        Ok(self.report())
    }

    fn away_past_the_log(&mut self) -> Result<(), String> {
        let away = self.some_node();
        self.misses_everything(away)?;
        self.comes_back(away)?;
        self.leads_alone(away)
    }

    /// All other nodes die, a node leads alone, and is read whole; then they come back.
    fn leads_alone(&mut self, away: usize) -> Result<(), String> {
        let others: Vec<usize> = (0..self.nodes.len()).filter(|node| *node != away).collect();
        for other in &others {
            self.stop_node_for(*other, false, "is cut away from who was away for long", FOR_EVER);
        }
        let osd = OsdId(away as u32);
        self.wait("that who was away leads", |life| {
            life.registry.map.pgs.values().all(|config| config.primary == osd) && life.all_groups_serve()
        })?;
        self.do_all(Kind::Read, self.world.plan.operation_blocks_max)?;
        for other in others {
            self.world.after(0, Event::Start(Process(other)));
        }
        Ok(())
    }

    fn parted_and_away(&mut self) -> Result<(), String> {
        let spot = self.some_spot();
        let primary = self.registry.map.pgs[&spot.key.pg].primary.0 as usize;
        let of_object = |step: &Step| step.first_block / OBJECT_BLOCKS as u64 == u64::from(spot.key.object);
        let all = all_of(Kind::Write, &self.world.plan, 1);
        let lost: Vec<Step> = all.iter().copied().filter(of_object).take(LOST_WRITES).collect();
        let is_lost = |step: &Step| lost.iter().any(|lost| lost.first_block == step.first_block);
        let others: Vec<Step> = all.iter().copied().filter(|step| !is_lost(step)).collect();
        self.part_from_nodes(primary, FOR_EVER);
        self.clients[0].run_errands(lost, &mut self.world);
        // No longer than its leases last: then it would refuse what it has not ordered.
        self.run_until(self.world.now + LOST_WRITES_TIME, |_| false)?;
        self.stop_node_for(primary, false, "dies with what it alone has", FOR_EVER);
        self.stop_client(0);
        self.others_go_on(primary)?;
        self.writes_past_logs(1, others)?;
        for other in (0..self.nodes.len()).map(Process) {
            self.world.heal(Process(primary), other, 0);
            self.world.heal(other, Process(primary), 0);
        }
        self.comes_back(primary)?;
        self.check_agreement()
    }

    fn rotten_while_away(&mut self) -> Result<(), String> {
        let away = self.some_node();
        let other = 1 - away;
        self.misses_everything(away)?;
        let spot = self.some_spot();
        self.rots(other, spot)?;
        self.atlas.destroyed.insert((spot.key.layer.volume(), spot.in_volume));
        self.comes_back(away)?;
        // It may be refused, but nothing else may be read there.
        self.do_all(Kind::Read, self.world.plan.operation_blocks_max)?;
        self.do_all(Kind::Write, self.world.plan.operation_blocks_max)?;
        self.atlas.destroyed.clear();
        Ok(())
    }

    fn mended_before_it_rots(&mut self) -> Result<(), String> {
        let away = self.some_node();
        let other = 1 - away;
        let spot = self.some_spot();
        self.writes_past_logs(0, self.all_but(spot))?;
        self.rots(other, spot)?;
        self.scrub_everything(true)?;
        let is_power_cut = self.world.random.percent(50);
        self.stop_node_for(away, is_power_cut, "is away behind a mend", FOR_EVER);
        self.others_go_on(away)?;
        if self.world.random.percent(70) {
            self.writes_past_logs(0, self.all_but(spot))?;
        }
        self.rots(other, spot)?;
        self.comes_back(away)?;
        self.do_all(Kind::Read, self.world.plan.operation_blocks_max)
    }

    fn mended_by_reads(&mut self) -> Result<(), String> {
        for _ in 0..ROTS {
            let spot = self.some_spot();
            let primary = self.registry.map.pgs[&spot.key.pg].primary.0 as usize;
            self.rots(primary, spot)?;
            let blocks_max = self.world.random.between(1, self.world.plan.operation_blocks_max);
            self.do_all(Kind::Read, blocks_max)?;
            if !look(&self.nodes[primary], &spot.key, spot.block).is_some_and(|held| held.is_sound()) {
                return Err(format!("block {} of {} was read, and is still rotten", spot.block, spot.key));
            }
        }
        Ok(())
    }

    /// What a member has there does not verify any more.
    fn rots(&mut self, node: usize, spot: Spot) -> Result<(), String> {
        let held = look(&self.nodes[node], &spot.key, spot.block);
        let location = held.ok_or("a block that was written is not there")?.location;
        self.nodes[node].spoil(location);
        Ok(())
    }

    /// Writes of everything else, block by block.
    fn all_but(&self, spot: Spot) -> Vec<Step> {
        let elsewhere = |step: &Step| step.first_block != spot.in_volume;
        all_of(Kind::Write, &self.world.plan, 1).into_iter().filter(elsewhere).collect()
    }

    fn forged_behind_checksums(&mut self) -> Result<(), String> {
        let spot = self.some_spot();
        let Spot { key, block, .. } = spot;
        // Of what was written last a member that comes back is sent everything again.
        self.writes_past_logs(0, self.all_but(spot))?;
        let victim = self.some_node();
        self.stop_node_for(victim, false, "a copy is forged", FOR_EVER);
        let forged = self.forgery_of(&key, block);
        self.nodes[victim].forge(key, block, Some(&forged))?;
        self.comes_back(victim)?;
        if self.check_agreement().is_ok() {
            return Err(format!("the forged copy of block {block} of {key} is gone before it is looked for"));
        }
        self.scrub_everything(true)?;
        self.check_agreement()
    }

    /// A node is away until all logs have gone past it, and whatever it has was written over.
    fn misses_everything(&mut self, away: usize) -> Result<(), String> {
        let is_power_cut = self.world.random.percent(50);
        self.stop_node_for(away, is_power_cut, "is away for long", FOR_EVER);
        self.others_go_on(away)?;
        self.writes_past_logs(0, all_of(Kind::Write, &self.world.plan, 1))
    }

    /// All groups serve without a node.
    fn others_go_on(&mut self, away: usize) -> Result<(), String> {
        let osd = OsdId(away as u32);
        self.wait("that the others go on", |life| {
            life.registry.map.pgs.values().all(|config| !config.in_sync.contains(&osd))
                && life.all_groups_serve()
        })
    }

    /// A client writes again and again, until nothing is left in any log of what was there before.
    fn writes_past_logs(&mut self, client: usize, steps: Vec<Step>) -> Result<(), String> {
        let before = self.world.group_ends.clone();
        let entries = 2 * self.world.plan.pg_log_entries as u64;
        for _ in 0..ROUNDS_MAX {
            let ends = &self.world.group_ends;
            if before.iter().zip(ends).all(|(before, end)| *end > *before + entries) {
                return Ok(());
            }
            self.do_steps(client, steps.clone())?;
        }
        Err(format!("logs do not grow from {before:?} to more than {:?}", self.world.group_ends))
    }

    /// Who was stopped is started, and catches up.
    fn comes_back(&mut self, node: usize) -> Result<(), String> {
        self.world.after(0, Event::Start(Process(node)));
        self.wait("that who was away is in sync again", Life::has_healed)
    }

    /// The first client does the same with everything, as many blocks at a time.
    fn do_all(&mut self, kind: Kind, blocks_max: u64) -> Result<(), String> {
        self.do_steps(0, all_of(kind, &self.world.plan, blocks_max))
    }

    fn do_steps(&mut self, client: usize, steps: Vec<Step>) -> Result<(), String> {
        self.clients[client].run_errands(steps, &mut self.world);
        self.wait("the end of what a client does", |life| {
            let client = &life.clients[client];
            client.is_running() && client.is_done(&life.history, &life.world.plan)
        })
    }

    /// A block that the client writes.
    fn some_spot(&mut self) -> Spot {
        let steps = all_of(Kind::Read, &self.world.plan, 1);
        let Step { volume, first_block: in_volume, .. } = steps[self.world.random.index(steps.len())];
        let (object, block) =
            ((in_volume / OBJECT_BLOCKS as u64) as u32, (in_volume % OBJECT_BLOCKS as u64) as u16);
        let volume = volume_id(volume);
        let pg = self.registry.map.pg_of(POOL, volume, object).expect("the pool is there");
        Spot { in_volume, key: ObjectKey { pg, layer: volume.first_layer(), object }, block }
    }

    fn wait(&mut self, what: &str, is_reached: impl Fn(&Life) -> bool) -> Result<(), String> {
        let limit = self.world.now + LIMIT;
        match self.run_until(limit, is_reached)? {
            true => Ok(()),
            false => Err(format!("{what} does not come within {} s: {}", LIMIT / SECOND, self.troubles())),
        }
    }
}
