//! The names of the keys. Their layout is in the module's documentation.

use base::map::WishId;
use base::{ClientId, LayerId, NodeId, OsdId, OsdUuid, PgId, PoolId, VolumeId};
use registry::LeaseId;

/// So all keys of a cluster begin. In an etcd, those of another one may stand beside them: one name may go on where another ends.
pub(super) const OWN: &str = "millpond/";
pub(super) const MAP: &str = "millpond/map/";
pub(super) const CLUSTER: &str = "millpond/map/cluster";
pub(super) const MOVING_IN: &str = "millpond/moving-in";
pub(super) const MOVED: &str = "millpond/moved";
pub(super) const ENCRYPTION: &str = "millpond/map/encryption";
pub(super) const RECOVERY_SHARE: &str = "millpond/map/recovery-share";
pub(super) const PROFILE: &str = "millpond/map/profile";
pub(super) const RESERVED: &str = "millpond/reserved";
pub(super) const NEXT_NODE: &str = "millpond/next/node";
pub(super) const NEXT_OSD: &str = "millpond/next/osd";
pub(super) const NEXT_POOL: &str = "millpond/next/pool";
pub(super) const NEXT_VOLUME: &str = "millpond/next/volume";
pub(super) const NEXT_GROUP: &str = "millpond/next/group";
pub(super) const NEXT_CUT: &str = "millpond/next/cut";
pub(super) const OSDS_REMOVED: &str = "millpond/osds-removed";
pub(super) const MANAGER: &str = "millpond/manager";
pub(super) const SPACE: &str = "millpond/space";
pub(super) const SETTINGS: &str = "millpond/settings";
pub(super) const DRIVES: &str = "millpond/drive/";
pub(super) const PGS: &str = "millpond/map/pg/";
pub(super) const TARGETS: &str = "millpond/map/target/";
pub(super) const NAMESPACES: &str = "millpond/map/namespace/";
pub(super) const VOLUMES: &str = "millpond/map/volume/";
pub(super) const SNAPSHOTS: &str = "millpond/map/snapshot/";
pub(super) const SCHEDULES: &str = "millpond/map/schedule/";
pub(super) const REMOVED_POOLS: &str = "millpond/map/removed-pool/";
pub(super) const SCRUBS: &str = "millpond/scrub/";
pub(super) const SCRUB_WISHES: &str = "millpond/scrub-wish/";
pub(super) const HTTP: &str = "millpond/http/";
pub(super) const PRINCIPALS: &str = "millpond/map/principal/";
pub(super) const WISHES: &str = "millpond/map/wish/";
pub(super) const ATTACHED: &str = "millpond/attached/";
pub(super) const VOLUME_NAMES: &str = "millpond/volume-name/";

/// A key below [`MAP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapKey<'a> {
    Cluster,
    Node(NodeId),
    Osd(OsdId),
    Up(OsdId),
    Pool(PoolId),
    Pg(PgId),
    Target(PgId),
    Namespace(PoolId, &'a str),
    Volume(VolumeId),
    Snapshot(LayerId),
    Still(VolumeId),
    Wish(VolumeId, WishId),
    Schedule(&'a str),
    RemovedPool(PoolId),
    Principal(&'a str),
    Encryption,
    RecoveryShare,
    Profile,
}

impl MapKey<'_> {
    /// What a key says, or `None` for one that this version does not know.
    pub(super) fn parse(key: &str) -> Option<MapKey<'_>> {
        let name = key.strip_prefix(MAP)?;
        let Some((kind, id)) = name.split_once('/') else {
            return match name {
                "cluster" => Some(MapKey::Cluster),
                "encryption" => Some(MapKey::Encryption),
                "recovery-share" => Some(MapKey::RecoveryShare),
                "profile" => Some(MapKey::Profile),
                _ => None,
            };
        };
        match kind {
            "node" => id.parse().ok().map(|id| MapKey::Node(NodeId(id))),
            "osd" => id.parse().ok().map(|id| MapKey::Osd(OsdId(id))),
            "up" => id.parse().ok().map(|id| MapKey::Up(OsdId(id))),
            "pool" => id.parse().ok().map(|id| MapKey::Pool(PoolId(id))),
            "pg" => id.parse().ok().map(MapKey::Pg),
            "target" => id.parse().ok().map(MapKey::Target),
            "namespace" => {
                let (pool, name) = id.split_once('/')?;
                pool.parse().ok().map(|pool| MapKey::Namespace(PoolId(pool), name))
            }
            "volume" => id.parse().ok().map(|id| MapKey::Volume(VolumeId(id))),
            "snapshot" => parse_layer(id).map(MapKey::Snapshot),
            "still" => id.parse().ok().map(|id| MapKey::Still(VolumeId(id))),
            "wish" => parse_wish(id),
            "schedule" => Some(MapKey::Schedule(id)),
            "removed-pool" => id.parse().ok().map(|id| MapKey::RemovedPool(PoolId(id))),
            "principal" => Some(MapKey::Principal(id)),
            _ => None,
        }
    }
}

/// The number of the layer that the entry of a snapshot is of.
pub(super) fn snapshot_number(key: &str) -> Option<u32> {
    parse_layer(key.strip_prefix(SNAPSHOTS)?).map(LayerId::number)
}

/// The wish of VOLUME/WISH.
fn parse_wish(text: &str) -> Option<MapKey<'_>> {
    let (volume, wish) = text.split_once('/')?;
    Some(MapKey::Wish(VolumeId(volume.parse().ok()?), WishId(u64::from_str_radix(wish, 16).ok()?)))
}

/// The layer of VOLUME/NUMBER.
fn parse_layer(text: &str) -> Option<LayerId> {
    let (volume, number) = text.split_once('/')?;
    let (volume, number) = (VolumeId(volume.parse().ok()?), number.parse().ok()?);
    (volume == volume.first_layer().volume() && number <= LayerId::NUMBER_MAX).then(|| volume.layer(number))
}

/// Declares the functions that name keys: of what, and in which form.
macro_rules! keys {
    ($($name:ident($($of:ident: $kind:ty),+) = $form:literal $(, $value:expr)*;)*) => {$(
        pub(super) fn $name($($of: $kind),+) -> String {
            format!($form $(, $value)*)
        }
    )*};
}

keys! {
    node(id: NodeId) = "{MAP}node/{}", id.0;
    osd(id: OsdId) = "{MAP}osd/{}", id.0;
    up(id: OsdId) = "{MAP}up/{}", id.0;
    pool(id: PoolId) = "{MAP}pool/{}", id.0;
    pg(id: PgId) = "{PGS}{id}";
    pgs_of(pool: PoolId) = "{PGS}{}.", pool.0;
    target(id: PgId) = "{TARGETS}{id}";
    targets_of(pool: PoolId) = "{TARGETS}{}.", pool.0;
    namespaces_of(pool: PoolId) = "{NAMESPACES}{}/", pool.0;
    namespace(pool: PoolId, name: &str) = "{NAMESPACES}{}/{name}", pool.0;
    volume(id: VolumeId) = "{VOLUMES}{}", id.0;
    next_clone(family: VolumeId) = "millpond/next/clone/{}", family.0;
    snapshots_of(volume: VolumeId) = "{SNAPSHOTS}{}/", volume.0;
    snapshot(layer: LayerId) = "{SNAPSHOTS}{}/{}", layer.volume().0, layer.number();
    snapshot_names_of(volume: VolumeId) = "millpond/snapshot-name/{}/", volume.0;
    snapshot_name(volume: VolumeId, name: &str) = "millpond/snapshot-name/{}/{name}", volume.0;
    still(volume: VolumeId) = "{MAP}still/{}", volume.0;
    stands_still_of(volume: VolumeId) = "millpond/stands-still/{}/", volume.0;
    stands_still(volume: VolumeId, client: ClientId) = "millpond/stands-still/{}/{:016x}", volume.0, client.0;
    wishes_of(volume: VolumeId) = "{WISHES}{}/", volume.0;
    wish(volume: VolumeId, wish: WishId) = "{WISHES}{}/{:016x}", volume.0, wish.0;
    watchers_of(volume: VolumeId) = "millpond/watcher/{}/", volume.0;
    watcher(volume: VolumeId, client: ClientId, what: &str) = "millpond/watcher/{}/{:016x}/{what}", volume.0, client.0;
    watch_guard(volume: VolumeId) = "millpond/watch-guard/{}", volume.0;
    locks(volume: VolumeId) = "millpond/locks/{}", volume.0;
    schedule(name: &str) = "{SCHEDULES}{name}";
    removed_pool(id: PoolId) = "{REMOVED_POOLS}{}", id.0;
    principal(name: &str) = "{PRINCIPALS}{name}";
    uuid(uuid: OsdUuid) = "millpond/uuid/{uuid}";
    pool_name(name: &str) = "millpond/pool-name/{name}";
    volume_name(name: &str) = "{VOLUME_NAMES}{name}";
    volume_names_beside(name: &str) = "{VOLUME_NAMES}{name}/";
    volume_name_beside(name: &str, pool: PoolId) = "{VOLUME_NAMES}{name}/{}", pool.0;
    volume_name_in(pool: PoolId, namespace: &str, name: &str) = "millpond/volume-name-in/{}/{namespace}/{name}", pool.0;
    metadata_of(volume: VolumeId) = "millpond/metadata/{}/", volume.0;
    metadatum(volume: VolumeId, key: &str) = "millpond/metadata/{}/{key}", volume.0;
    place_metadata_of(pool: PoolId, namespace: &str) = "millpond/place-metadata/{}/{namespace}/", pool.0;
    place_metadata_of_pool(pool: PoolId) = "millpond/place-metadata/{}/", pool.0;
    groups_of(pool: PoolId, namespace: &str) = "millpond/group/{}/{namespace}/", pool.0;
    group(pool: PoolId, namespace: &str, name: &str) = "millpond/group/{}/{namespace}/{name}", pool.0;
    group_of(volume: VolumeId) = "millpond/group-of/{}", volume.0;
    attached_to(volume: VolumeId) = "{ATTACHED}{}/", volume.0;
    attached(volume: VolumeId, client: ClientId) = "{ATTACHED}{}/{:016x}", volume.0, client.0;
    holders_of(volume: VolumeId) = "millpond/holder/{}/", volume.0;
    holder(volume: VolumeId, client: ClientId) = "millpond/holder/{}/{:016x}", volume.0, client.0;
    attach_guard(volume: VolumeId) = "millpond/attach-guard/{}", volume.0;
    client_lease(lease: LeaseId) = "millpond/client-lease/{:016x}", lease.0;
    scrub(id: PgId) = "{SCRUBS}{id}";
    scrub_wish(id: PgId) = "{SCRUB_WISHES}{id}";
    drive(id: OsdId) = "{DRIVES}{}", id.0;
    joined(id: OsdId) = "millpond/joined/{}", id.0;
    http(node: NodeId, pid: u32) = "{HTTP}{}-{pid}", node.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_the_map_reads_back_what_it_names() {
        let pg = PgId { pool: PoolId(3), index: 17 };
        assert_eq!(MapKey::parse(CLUSTER), Some(MapKey::Cluster));
        assert_eq!(MapKey::parse(PROFILE), Some(MapKey::Profile));
        assert_eq!(MapKey::parse(&node(NodeId(3))), Some(MapKey::Node(NodeId(3))));
        assert_eq!(MapKey::parse(&osd(OsdId(3))), Some(MapKey::Osd(OsdId(3))));
        assert_eq!(MapKey::parse(&up(OsdId(3))), Some(MapKey::Up(OsdId(3))));
        assert_eq!(MapKey::parse(&pool(PoolId(3))), Some(MapKey::Pool(PoolId(3))));
        assert_eq!(MapKey::parse(&self::pg(pg)), Some(MapKey::Pg(pg)));
        assert_eq!(MapKey::parse(&target(pg)), Some(MapKey::Target(pg)));
        assert!(target(pg).starts_with(&targets_of(PoolId(3))));
        assert_eq!(MapKey::parse(&namespace(PoolId(3), "n")), Some(MapKey::Namespace(PoolId(3), "n")));
        assert!(namespace(PoolId(3), "n").starts_with(&namespaces_of(PoolId(3))));
        assert!(volume_name_beside("v", PoolId(3)).starts_with(&volume_names_beside("v")));
        assert_eq!(MapKey::parse(&volume(VolumeId(3))), Some(MapKey::Volume(VolumeId(3))));
        let layer = VolumeId(3).layer(7);
        assert_eq!(MapKey::parse(&snapshot(layer)), Some(MapKey::Snapshot(layer)));
        assert!(snapshot(layer).starts_with(&snapshots_of(VolumeId(3))));
        assert_eq!(MapKey::parse(&still(VolumeId(3))), Some(MapKey::Still(VolumeId(3))));
        let wished = wish(VolumeId(3), WishId(u64::MAX - 7));
        assert_eq!(MapKey::parse(&wished), Some(MapKey::Wish(VolumeId(3), WishId(u64::MAX - 7))));
        assert!(wished.starts_with(&wishes_of(VolumeId(3))));
        assert_eq!(MapKey::parse(&schedule("hourly")), Some(MapKey::Schedule("hourly")));
        assert_eq!(MapKey::parse(&removed_pool(PoolId(3))), Some(MapKey::RemovedPool(PoolId(3))));
        assert!(self::pg(pg).starts_with(&pgs_of(PoolId(3))));
        assert_eq!(MapKey::parse(&principal("backup")), Some(MapKey::Principal("backup")));
        // A layer that no volume has.
        let beyond = format!("{SNAPSHOTS}3/{}", LayerId::NUMBER_MAX + 1);
        for other in [
            &beyond,
            "millpond/map/snapshot/3",
            "millpond/map/namespace/3",
            "millpond/map/namespace/x/n",
            "millpond/map/wish/3",
            "millpond/map/wish/3/x",
            "millpond/map/",
            "millpond/map/osd/x",
            "millpond/map/moon/1",
            "millpond/drive/1",
        ] {
            assert_eq!(MapKey::parse(other), None, "{other}");
        }
    }
}
