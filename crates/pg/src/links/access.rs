//! What whoever connected may do: its credential, looked at when it says who it is, with every request, and whenever
//! the map changes.
//!
//! Who has a key proved it before its connection came here; an OSD does not know how.

use super::{LinkError, Links, Peer};
use crate::volumes::{VolumeState, Volumes};
use base::figures::Traffic;
use base::map::ClusterMap;
use base::{
    Access, ClientId, Instant, LayerId, LinkId, Network, OsdId, Permission, PoolId, Principal, VolumeId,
};
use std::sync::Arc;
use wire::{Message, Request, Status};

/// How many connections one key may have to an OSD: a quarter of what its reactor takes. Whoever stole the key of a client leaves
/// the others room, and a machine has thousands of volumes before it comes near.
const CONNECTIONS_PER_KEY_MAX: usize = 4096;
/// How many connections an OSD has when it takes no more of clients: a reactor takes 16,384. Whoever has many keys leaves other
/// OSDs room, and so do several of them beside one stolen key of a node.
const CONNECTIONS_FOR_CLIENTS_MAX: usize = 11 << 10;

/// Who connected, as its key proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// The principal's name.
    pub name: Arc<str>,
    /// Its key, and what it may do.
    pub principal: Principal,
    /// The revision of the map that said so.
    pub seen_at: u64,
}

impl Credential {
    /// Does as a map says of it; false if its key is gone. A map that is not newer than the one it was proved by says nothing.
    fn heed(&mut self, map: &ClusterMap) -> bool {
        if map.revision <= self.seen_at {
            return true;
        }
        let now = map.principals.get(&*self.name).filter(|now| now.public_key == self.principal.public_key);
        if let Some(now) = now {
            self.principal.access.clone_from(&now.access);
        }
        now.is_some()
    }

    /// Whether that key is one of the cluster still: a newer map may have come while it was proved.
    pub(crate) fn admit_still(&mut self, map: &ClusterMap) -> Result<(), LinkError> {
        if self.heed(map) { Ok(()) } else { Err(LinkError::KeyRemoved(self.name.clone())) }
    }

    /// What it may do with a volume, if anything.
    fn to_volume(&self, volume: &VolumeState) -> Option<Permission> {
        self.principal.access.to_volumes(volume.pool, &volume.namespace)
    }

    fn must_not(&self, what: &'static str) -> LinkError {
        LinkError::NotAllowed { name: self.name.clone(), what }
    }
}

/// A client at the other end of a link.
#[derive(Clone, Debug)]
pub(crate) struct ClientLink {
    pub(crate) id: ClientId,
    /// What it was served on this link.
    pub(crate) traffic: Traffic,
    /// It speaks a version of the protocol in which it is told that something waits for a limit.
    pub(crate) knows_limits: bool,
    /// Since when a fence waits in its connection, if one does.
    pub(crate) fence_waits_since: Option<Instant>,
    /// None where nothing is checked, as in a simulator.
    credential: Option<Credential>,
}

impl ClientLink {
    pub(crate) fn new(id: ClientId, credential: Option<Credential>) -> ClientLink {
        ClientLink {
            id,
            traffic: Traffic::default(),
            knows_limits: true,
            fence_waits_since: None,
            credential,
        }
    }

    /// What it may do with all volumes of a pool, if anything.
    fn to_pool(&self, pool: PoolId) -> Option<Permission> {
        match &self.credential {
            None => Some(Permission::Manage),
            Some(credential) => credential.principal.access.to_pool(pool),
        }
    }

    /// Whether it depends on the volume what it may do with one of a pool.
    fn names_namespaces_of(&self, pool: PoolId) -> bool {
        self.credential
            .as_ref()
            .is_some_and(|credential| credential.principal.access.names_namespaces_of(pool))
    }

    /// What it may do with a volume, if anything.
    fn to_volume(&self, volume: &VolumeState) -> Option<Permission> {
        match &self.credential {
            None => Some(Permission::Manage),
            Some(credential) => credential.to_volume(volume),
        }
    }

    /// Whether it may be told how a layer differs from another one: not of one that it does not see through that layer, and may not
    /// read either.
    fn may_see_origin(&self, request: &Request, volumes: &Volumes) -> bool {
        let origin = LayerId(request.origin);
        let is_seen = || volumes.sight_of(request.key.layer).iter().any(|span| span.has(origin));
        let may_read = || volumes.of_layer(origin).is_some_and(|volume| self.to_volume(volume).is_some());
        request.origin == 0 || origin.volume() == request.key.layer.volume() || is_seen() || may_read()
    }

    /// With what status a message is refused for want of a right, if it is, and its request.
    pub(crate) fn lacks_right(&self, message: &Message<'_>, volumes: &Volumes) -> Option<(u64, Status)> {
        let (request, is_change) = match message {
            Message::Read(request)
            | Message::Allocated(request)
            | Message::Changed(request)
            | Message::Space(request) => (request, false),
            Message::Write(write) => (&write.head, true),
            Message::Zero(request) => (request, true),
            _ => return None,
        };
        let pool = request.key.pg.pool;
        let whole = self.to_pool(pool);
        let permission = match whole {
            whole if whole.is_some_and(Permission::may_write) || !self.names_namespaces_of(pool) => whole,
            whole => match volumes.of_layer(request.key.layer) {
                Some(volume) => self.to_volume(volume),
                // It was made a moment ago, and the map that says where it is is on its way.
                None if whole.is_none() => return Some((request.request, Status::NotActive)),
                None => whole,
            },
        };
        if let Message::Changed(request) = message
            && whole.is_none()
            && permission.is_some()
            && !self.may_see_origin(request, volumes)
        {
            return Some((request.request, Status::Forbidden));
        }
        let status = match permission {
            Some(permission) if permission.may_write() => return None,
            None => Status::Forbidden,
            Some(_) if is_change => Status::Forbidden,
            Some(_) => {
                // A generation that nobody vouches for would fence whoever writes.
                let known = volumes.of_layer(request.key.layer).map(|volume| volume.vouched);
                if known.is_some_and(|known| request.generation <= known) {
                    return None;
                }
                Status::NotActive
            }
        };
        Some((request.request, status))
    }
}

impl Peer {
    /// What whoever is there proved, if that is checked.
    pub(crate) fn credential(&self) -> Option<&Credential> {
        match self {
            Peer::Unknown(credential) => credential.as_ref(),
            Peer::Client(client) => client.credential.as_ref(),
            Peer::Osd(peer) => peer.credential.as_ref(),
        }
    }
}

impl Links {
    /// Whether whoever has this credential may have one more connection, by the newest map.
    pub(crate) fn admit_one_more(
        &self,
        credential: &mut Credential,
        map: &ClusterMap,
    ) -> Result<(), LinkError> {
        credential.admit_still(map)?;
        if self.tenants.links_of(&credential.principal.public_key) >= CONNECTIONS_PER_KEY_MAX {
            return Err(LinkError::TooMany { name: credential.name.clone(), max: CONNECTIONS_PER_KEY_MAX });
        }
        let is_nodes = matches!(credential.principal.access, Access::Node(_));
        if !is_nodes && self.peers.len() >= CONNECTIONS_FOR_CLIENTS_MAX {
            return Err(LinkError::TooManyClients { max: CONNECTIONS_FOR_CLIENTS_MAX });
        }
        Ok(())
    }

    /// Whether whoever has this credential may be that client, on that link. Answers its older link. A client of another key
    /// is another one, whatever it says: nobody can take its place, nor hold it against it.
    pub(crate) fn admit_client(
        &self,
        link: LinkId,
        client: ClientId,
        credential: Option<Credential>,
    ) -> Result<(ClientLink, Option<LinkId>), LinkError> {
        if let Some(ours) = &credential {
            match ours.principal.access {
                Access::Node(_) => return Err(ours.must_not("be a client: its key is a node's")),
                Access::Monitor => {
                    return Err(ours.must_not("be a client: its key is to ask how the cluster is"));
                }
                Access::Admin | Access::Pools(_) => {}
            }
        }
        let older = self.of_client(self.tenants.of(link), client);
        if let Some(ours) = &credential
            && let Some(peer) = older.and_then(|older| self.get(older))
            && peer.credential().is_none_or(|theirs| theirs.name != ours.name)
        {
            return Err(ours.must_not("be a client that another key is"));
        }
        Ok((ClientLink::new(client, credential), older))
    }

    /// Whether whoever has this credential may be that OSD.
    pub(crate) fn admit_osd(
        me: OsdId,
        osd: OsdId,
        credential: Option<&Credential>,
        map: &ClusterMap,
    ) -> Result<(), LinkError> {
        let Some(info) = map.osds.get(&osd).filter(|_| osd != me) else {
            return Err(LinkError::UnknownOsd(osd));
        };
        match credential {
            Some(credential) if credential.principal.access != Access::Node(info.node) => {
                Err(credential.must_not("be an OSD of another node"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a client may have those fenced who had a volume before.
    pub(crate) fn may_fence(
        &self,
        link: LinkId,
        volume: VolumeId,
        volumes: &Volumes,
    ) -> Result<(), LinkError> {
        let Some(Peer::Client(ClientLink { credential: Some(credential), .. })) = self.peers.get(&link)
        else {
            return Ok(());
        };
        if credential.principal.access == Access::Admin {
            return Ok(());
        }
        let Some(state) = volumes.get(volume) else {
            return Err(LinkError::OutOfTurn("the volume to fence is not known here yet"));
        };
        match credential.to_volume(state) {
            Some(permission) if permission.may_write() => Ok(()),
            _ => Err(credential.must_not("fence that volume")),
        }
    }

    /// Does by a newer map what it says of those who are connected: whose key is gone is let go.
    pub(crate) fn heed_principals(&mut self, map: &ClusterMap, network: &mut impl Network) {
        let mut gone = Vec::new();
        for (link, peer) in &mut self.peers {
            let credential = match peer {
                Peer::Unknown(credential) => credential,
                Peer::Client(client) => &mut client.credential,
                Peer::Osd(peer) => &mut peer.credential,
            };
            if let Some(credential) = credential
                && !credential.heed(map)
            {
                gone.push(*link);
            }
        }
        // In the order of the links, so that a run repeats itself.
        gone.sort_unstable();
        for link in gone {
            if !matches!(self.peers.get(&link), Some(Peer::Osd(_))) {
                self.remove(link);
            }
            network.close(link, "its key was removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::OsdLink;
    use crate::testing::{Alone, PG, VOLUME, map};
    use base::map::{OsdInfo, VolumeInfo};
    use base::{BLOCK_BYTES, Generation, NodeId, ObjectKey, PublicKey, Rights};
    use wire::{Fence, Hello, Kind, Role, VERSIONS, Version};

    const LINK: LinkId = LinkId(7);
    const CLIENT: Role = Role::Client(ClientId(5));

    fn principal(access: Access) -> Principal {
        Principal::new(PublicKey([3; 32]), access)
    }

    fn reader() -> Access {
        Access::Pools([(PG.pool, Permission::Read)].into())
    }

    fn writer() -> Access {
        Access::Pools([(PG.pool, Permission::ReadWrite)].into())
    }

    /// As the newest map proves it.
    fn credential(alone: &Alone, name: &str, access: Access) -> Credential {
        Credential {
            name: name.into(),
            principal: principal(access),
            seen_at: alone.osd.shared.volumes.map.revision,
        }
    }

    /// Somebody connects with that access and says who it is.
    fn greet(
        alone: &mut Alone,
        link: LinkId,
        name: &str,
        access: Access,
        role: Role,
    ) -> Result<(), LinkError> {
        let credential = credential(alone, name, access);
        alone.osd.handle_accepted(link, Some(credential))?;
        let (cluster, target) = (alone.osd.me.cluster, alone.osd.me.id);
        let hello = Hello { role, cluster, target, versions: VERSIONS };
        alone.osd.handle_bytes(alone.now, link, &hello.encode(), &mut alone.io).map(drop)
    }

    fn request(alone: &Alone, generation: u32) -> Request {
        Request {
            request: 1,
            key: ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 },
            offset: 0,
            length: BLOCK_BYTES as u32,
            epoch: alone.osd.shared.groups[0].epoch,
            generation: Generation(generation),
            origin: 0,
            since: None,
            unverified: false,
            of_snapshot: false,
        }
    }

    /// What becomes of a request of the client.
    fn status(alone: &mut Alone, bytes: &[u8]) -> Status {
        alone.io.sent.clear();
        alone.osd.handle_bytes(alone.now, LINK, bytes, &mut alone.io).unwrap();
        alone.run();
        match wire::parse(&alone.io.sent).unwrap().expect("it is answered").0 {
            Message::Reply(reply) => reply.head.status,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_may_only_read_changes_nothing_and_fences_nobody() {
        let mut alone = Alone::new();
        greet(&mut alone, LINK, "backup", reader(), CLIENT).unwrap();
        let (now, ahead) = (request(&alone, 1), request(&alone, 9));
        assert_eq!(status(&mut alone, &now.encode(Kind::Zero)), Status::Forbidden);
        assert_eq!(status(&mut alone, &now.encode(Kind::Read)), Status::Ok);
        assert_eq!(status(&mut alone, &ahead.encode(Kind::Read)), Status::NotActive);
        assert_eq!(
            status(&mut alone, &now.encode(Kind::Read)),
            Status::Ok,
            "the writer's generation still counts"
        );
        let fence = Fence { request: 1, volume: VOLUME, generation: Generation(9) };
        let fenced = alone.osd.handle_bytes(alone.now, LINK, &fence.encode(Kind::Fence), &mut alone.io);
        assert!(matches!(fenced, Err(LinkError::NotAllowed { .. })), "{fenced:?}");
    }

    #[test]
    fn who_manages_the_volumes_of_a_pool_writes_to_them_and_fences_others() {
        let mut alone = Alone::new();
        let manager = Access::Pools([(PG.pool, Permission::Manage)].into());
        greet(&mut alone, LINK, "host", manager, CLIENT).unwrap();
        let now = request(&alone, 1);
        assert_eq!(status(&mut alone, &now.encode(Kind::Zero)), Status::Ok);
        assert_eq!(status(&mut alone, &now.encode(Kind::Read)), Status::Ok);
        let fence = Fence { request: 1, volume: VOLUME, generation: Generation(9) };
        alone.osd.handle_bytes(alone.now, LINK, &fence.encode(Kind::Fence), &mut alone.io).unwrap();
    }

    #[test]
    fn a_key_reaches_its_pools_and_no_other() {
        let mut alone = Alone::new();
        let other = Access::Pools([(PoolId(2), Permission::ReadWrite)].into());
        greet(&mut alone, LINK, "tenant", other, CLIENT).unwrap();
        let wanted = request(&alone, 1);
        assert_eq!(status(&mut alone, &wanted.encode(Kind::Read)), Status::Forbidden);
        assert_eq!(status(&mut alone, &wanted.encode(Kind::Zero)), Status::Forbidden);
        // Nor by a lie about the pool.
        let mut lie = wanted;
        lie.key.pg.pool = PoolId(2);
        lie.generation = Generation(9);
        assert_eq!(status(&mut alone, &lie.encode(Kind::Read)), Status::NotPrimary);
        assert_eq!(
            alone.osd.shared.volumes.get(VOLUME).unwrap().generation,
            Generation(1),
            "which fences nobody"
        );
        let fence = Fence { request: 1, volume: VOLUME, generation: Generation(9) };
        assert!(alone.osd.handle_bytes(alone.now, LINK, &fence.encode(Kind::Fence), &mut alone.io).is_err());
        // A volume that is not known here may be in any pool.
        let fence = Fence { volume: VolumeId(77), ..fence };
        assert!(alone.osd.handle_bytes(alone.now, LINK, &fence.encode(Kind::Fence), &mut alone.io).is_err());
    }

    fn of_namespaces(named: &[(&str, Permission)]) -> Access {
        let named = named.iter().map(|(name, permission)| ((*name).to_owned(), *permission)).collect();
        Access::Pools(Rights { namespaces: [(PG.pool, named)].into(), ..Rights::default() })
    }

    /// A newer map has the volume in a namespace of its pool.
    fn put_into(alone: &mut Alone, namespace: &str) {
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        map.revision += 1;
        map.volumes.get_mut(&VOLUME).unwrap().namespace = namespace.to_owned();
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
    }

    #[test]
    fn how_a_volume_differs_from_one_that_a_key_may_not_read_is_not_told() {
        let mut alone = Alone::new();
        put_into(&mut alone, "mine");
        let mut map = ClusterMap::clone(&alone.osd.shared.volumes.map);
        map.revision += 1;
        let [others, shared] = [VolumeId(VOLUME.0 + 1), VolumeId(VOLUME.0 + 2)];
        let other = VolumeInfo { namespace: "other".to_owned(), ..map.volumes[&VOLUME].clone() };
        map.volumes.insert(shared, VolumeInfo { namespace: "mine".to_owned(), ..other.clone() });
        map.volumes.insert(others, other);
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        greet(&mut alone, LINK, "host", of_namespaces(&[("mine", Permission::Read)]), CLIENT).unwrap();
        let origin_of = |volume: VolumeId| volume.first_layer().0;
        for (origin, expected) in [
            (0, Status::Ok),
            (origin_of(VOLUME), Status::Ok),
            (origin_of(shared), Status::Ok),
            (origin_of(others), Status::Forbidden),
            (origin_of(VolumeId(VOLUME.0 + 9)), Status::Forbidden),
        ] {
            let asked = Request { origin, ..request(&alone, 1) };
            assert_eq!(status(&mut alone, &asked.encode(Kind::Changed)), expected, "{origin:x}");
        }
    }

    #[test]
    fn a_key_of_a_namespace_reaches_the_volumes_in_it_and_no_other_whose_id_it_guesses() {
        let fence = Fence { request: 1, volume: VOLUME, generation: Generation(9) };
        let fences = |alone: &mut Alone| {
            alone.osd.handle_bytes(alone.now, LINK, &fence.encode(Kind::Fence), &mut alone.io)
        };
        for (inside, access, changes, reads) in [
            ("mine", of_namespaces(&[("mine", Permission::Manage)]), Status::Ok, Status::Ok),
            ("mine", of_namespaces(&[("mine", Permission::ReadWrite)]), Status::Ok, Status::Ok),
            ("mine", of_namespaces(&[("mine", Permission::Read)]), Status::Forbidden, Status::Ok),
            ("other", of_namespaces(&[("mine", Permission::Manage)]), Status::Forbidden, Status::Forbidden),
            ("", of_namespaces(&[("mine", Permission::Manage)]), Status::Forbidden, Status::Forbidden),
            ("min", of_namespaces(&[("mine", Permission::Manage)]), Status::Forbidden, Status::Forbidden),
            ("mine", writer(), Status::Ok, Status::Ok),
            ("mine", reader(), Status::Forbidden, Status::Ok),
        ] {
            let mut alone = Alone::new();
            put_into(&mut alone, inside);
            let what = format!("{inside:?} {access:?}");
            greet(&mut alone, LINK, "host", access, CLIENT).unwrap();
            let now = request(&alone, 1);
            assert_eq!(status(&mut alone, &now.encode(Kind::Zero)), changes, "{what}");
            for kind in [Kind::Read, Kind::Allocated, Kind::Changed, Kind::Space] {
                assert_eq!(status(&mut alone, &now.encode(kind)), reads, "{what}");
            }
            // A generation that it makes up counts from who may write to that volume alone.
            let ahead = Request { generation: Generation(9), ..now };
            assert_ne!(
                status(&mut alone, &ahead.encode(Kind::Read)) == Status::Ok,
                changes != Status::Ok,
                "{what}"
            );
            let fenced = alone.osd.shared.volumes.get(VOLUME).unwrap().generation == Generation(9);
            assert_eq!(fenced, changes == Status::Ok, "{what}");
            assert_eq!(fences(&mut alone).is_ok(), changes == Status::Ok, "{what}");
        }
    }

    #[test]
    fn who_reads_a_pool_and_writes_a_namespace_of_it_does_each_where_it_may() {
        let mut alone = Alone::new();
        let Access::Pools(rights) = of_namespaces(&[("mine", Permission::ReadWrite)]) else { unreachable!() };
        let both = Rights { pools: [(PG.pool, Permission::Read)].into(), ..rights };
        greet(&mut alone, LINK, "host", Access::Pools(both), CLIENT).unwrap();
        let now = request(&alone, 1);
        assert_eq!(status(&mut alone, &now.encode(Kind::Zero)), Status::Forbidden);
        assert_eq!(status(&mut alone, &now.encode(Kind::Read)), Status::Ok);
        let mut unknown = now;
        unknown.key.layer = VolumeId(77).first_layer();
        assert_eq!(status(&mut alone, &unknown.encode(Kind::Zero)), Status::Forbidden);
    }

    #[test]
    fn a_volume_that_no_map_showed_yet_is_of_no_namespace() {
        let mut alone = Alone::new();
        greet(&mut alone, LINK, "host", of_namespaces(&[("mine", Permission::Manage)]), CLIENT).unwrap();
        let mut unknown = request(&alone, 1);
        unknown.key.layer = VolumeId(77).first_layer();
        for kind in [Kind::Read, Kind::Zero] {
            assert_eq!(status(&mut alone, &unknown.encode(kind)), Status::NotActive);
        }
        // Of another pool it has nothing to wait for.
        unknown.key.pg.pool = PoolId(2);
        assert_eq!(status(&mut alone, &unknown.encode(Kind::Read)), Status::Forbidden);
    }

    #[test]
    fn what_a_key_may_do_changes_under_a_connection_and_ends_it() {
        let mut alone = Alone::new();
        greet(&mut alone, LINK, "tenant", writer(), CLIENT).unwrap();
        let wanted = request(&alone, 1);
        let mut map = map(1);
        // A map from before the key was made.
        let mut older = map.clone();
        older.revision = 1;
        alone.osd.shared.links.heed_principals(&ClusterMap { revision: 0, ..older }, &mut alone.io);
        assert_eq!(status(&mut alone, &wanted.encode(Kind::Zero)), Status::Ok);
        map.revision = 2;
        map.principals.insert("tenant".to_owned(), principal(reader()));
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        let wanted = request(&alone, 1);
        assert_eq!(status(&mut alone, &wanted.encode(Kind::Zero)), Status::Forbidden);
        map.revision = 3;
        map.principals.clear();
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        assert_eq!(alone.io.closed, [LINK]);
        assert!(alone.osd.handle_bytes(alone.now, LINK, &wanted.encode(Kind::Read), &mut alone.io).is_err());
    }

    #[test]
    fn one_key_leaves_room_for_others_and_gets_its_own_back() {
        let mut alone = Alone::new();
        let connects = |alone: &mut Alone, link: u64, key: u8| {
            let mut one = credential(alone, &format!("key-{key}"), writer());
            one.principal.public_key = PublicKey([key; 32]);
            alone.osd.handle_accepted(LinkId(link), Some(one))
        };
        let first = 100;
        let last = first + CONNECTIONS_PER_KEY_MAX as u64 - 1;
        for link in first..=last {
            connects(&mut alone, link, 1).unwrap();
        }
        let refused = connects(&mut alone, last + 1, 1);
        assert!(matches!(refused, Err(LinkError::TooMany { .. })), "{refused:?}");
        connects(&mut alone, last + 2, 2).unwrap();
        let now = alone.now;
        alone.osd.handle_closed(now, LinkId(first), "it ended", &mut alone.io);
        connects(&mut alone, last + 3, 1).unwrap();
    }

    #[test]
    fn clients_of_however_many_keys_leave_room_for_osds() {
        let mut alone = Alone::new();
        let connects = |alone: &mut Alone, link: usize, access: Access| {
            let mut one = credential(alone, &format!("key-{}", link / 1000), access);
            one.principal.public_key = PublicKey([(link / 1000) as u8 + 1; 32]);
            alone.osd.handle_accepted(LinkId(1000 + link as u64), Some(one))
        };
        let others = alone.osd.shared.links.peers.len();
        let last = CONNECTIONS_FOR_CLIENTS_MAX - others;
        (0..last).for_each(|link| connects(&mut alone, link, writer()).unwrap());
        let refused = connects(&mut alone, last, writer());
        assert!(matches!(refused, Err(LinkError::TooManyClients { .. })), "{refused:?}");
        connects(&mut alone, last + 1, Access::Node(NodeId(1))).unwrap();
    }

    #[test]
    fn a_client_of_another_key_is_another_one_whatever_it_says_that_it_is() {
        let mut alone = Alone::new();
        let mut greets = |link: u64, key: u8| {
            let mut one = credential(&alone, &format!("key-{key}"), writer());
            one.principal.public_key = PublicKey([key; 32]);
            alone.osd.handle_accepted(LinkId(link), Some(one)).unwrap();
            let (cluster, target) = (alone.osd.me.cluster, alone.osd.me.id);
            let hello = Hello { role: CLIENT, cluster, target, versions: VERSIONS }.encode();
            alone.osd.handle_bytes(alone.now, LinkId(link), &hello, &mut alone.io).unwrap();
            alone.io.closed.clone()
        };
        assert!(greets(30, 1).is_empty());
        assert!(greets(31, 2).is_empty(), "it takes nobody's place");
        assert_eq!(greets(32, 1), [LinkId(30)], "nor is it in the way of who has that id");
        assert_eq!(greets(33, 2), [LinkId(30), LinkId(31)]);
        for link in [30, 31] {
            let Alone { osd, io, now } = &mut alone;
            osd.handle_closed(*now, LinkId(link), "a test", io);
        }
        let links_of = |key: u8| alone.osd.view().links_of(&PublicKey([key; 32]));
        assert_eq!([1, 2, 3].map(links_of), [1, 1, 0]);
    }

    #[test]
    fn a_key_that_was_removed_while_it_was_proved_opens_nothing() {
        let mut alone = Alone::new();
        let mut proved = credential(&alone, "tenant", writer());
        proved.seen_at =
            alone.osd.shared.volumes.map.revision.checked_sub(1).expect("there was a map before");
        let refused = alone.osd.handle_accepted(LINK, Some(proved));
        assert!(matches!(refused, Err(LinkError::KeyRemoved(_))), "{refused:?}");
    }

    #[test]
    fn a_link_to_an_osd_ends_when_the_key_of_its_node_is_replaced() {
        let mut alone = Alone::new();
        let dialled = LinkId(20);
        alone.osd.shared.links.insert(dialled, Peer::Osd(OsdLink::new(OsdId(1), None, alone.now)));
        let proved = credential(&alone, "node.1", Access::Node(NodeId(1)));
        alone.osd.handle_proved(dialled, proved.clone()).unwrap();
        let mut map = map(1);
        map.revision = alone.osd.shared.volumes.map.revision + 1;
        map.principals.insert("node.1".to_owned(), proved.principal.clone());
        alone.osd.handle_map(alone.now, Arc::new(map.clone()), &mut alone.io);
        assert!(alone.io.closed.is_empty(), "its key is as it was");
        map.revision += 1;
        map.principals.get_mut("node.1").unwrap().public_key = PublicKey([4; 32]);
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        assert_eq!(alone.io.closed, [dialled]);
        let refused = alone.osd.handle_proved(LinkId(21), proved);
        assert!(matches!(refused, Err(LinkError::KeyRemoved(_))), "{refused:?}");
    }

    #[test]
    fn nobody_is_let_in_as_somebody_else() {
        let mut alone = Alone::new();
        let mut map = map(1);
        map.revision = 2;
        for osd in [1, 2] {
            map.osds.insert(OsdId(osd), OsdInfo { node: NodeId(osd), ..OsdInfo::default() });
        }
        map.principals.insert("n".to_owned(), principal(Access::Node(NodeId(1))));
        map.principals.insert("c".to_owned(), principal(writer()));
        map.principals.insert("d".to_owned(), principal(writer()));
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        let node = || Access::Node(NodeId(1));
        let mut refused = |link, name, access, role| {
            let greeted = greet(&mut alone, LinkId(link), name, access, role);
            matches!(greeted, Err(LinkError::NotAllowed { .. }))
        };
        assert!(refused(20, "c", writer(), Role::Osd(OsdId(1))), "a client is no OSD");
        assert!(refused(21, "a", Access::Admin, Role::Osd(OsdId(1))), "nor is who may do everything");
        assert!(refused(22, "n", node(), Role::Osd(OsdId(2))), "a node has its own OSDs only");
        assert!(refused(23, "n", node(), CLIENT), "a node is no client");
        assert!(!refused(24, "n", node(), Role::Osd(OsdId(1))));
        assert!(!refused(25, "c", writer(), CLIENT));
        assert!(refused(26, "d", writer(), CLIENT), "a client's links are ended by itself only");
        assert!(!refused(27, "c", writer(), CLIENT));
        assert_eq!(alone.io.closed, [LinkId(25)], "who connects anew ends its own older link");
    }

    /// A client has a volume fenced that was attached once; answers how often it was told that the fence stands.
    fn fences(alone: &mut Alone, link: LinkId, volume: VolumeId) -> Result<usize, LinkError> {
        alone.io.to.clear();
        let fence = Fence { request: 1, volume, generation: Generation(1) };
        alone.osd.handle_bytes(alone.now, link, &fence.encode(Kind::Fence), &mut alone.io)?;
        let is_done = |message: Message<'_>| matches!(message, Message::FenceDone(_)).then_some(());
        Ok(alone.io.told(link, is_done).len())
    }

    #[test]
    fn who_may_write_has_others_fenced_and_who_may_do_everything_waits_for_what_is_not_known_here_yet() {
        let mut alone = Alone::new();
        let (admin, unknown) = (LinkId(8), VolumeId(77));
        greet(&mut alone, LINK, "tenant", writer(), CLIENT).unwrap();
        greet(&mut alone, admin, "admin", Access::Admin, Role::Client(ClientId(6))).unwrap();
        assert_eq!(fences(&mut alone, LINK, VOLUME).unwrap(), 1);
        let refused = fences(&mut alone, LINK, unknown);
        assert!(matches!(refused, Err(LinkError::OutOfTurn(_))), "it may be in any pool: {refused:?}");
        assert_eq!(fences(&mut alone, admin, unknown).unwrap(), 0);
        let mut map = map(1);
        map.revision = alone.osd.shared.volumes.map.revision + 1;
        map.principals.insert("admin".to_owned(), principal(Access::Admin));
        let info = map.volumes[&VOLUME].clone();
        map.volumes.insert(unknown, info);
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        assert_eq!(fences(&mut alone, admin, unknown).unwrap(), 1);
    }

    #[test]
    fn who_may_only_ask_how_the_cluster_is_is_no_client() {
        let mut alone = Alone::new();
        let greeted = greet(&mut alone, LINK, "monitor", Access::Monitor, CLIENT);
        assert!(matches!(greeted, Err(LinkError::NotAllowed { .. })), "{greeted:?}");
    }

    #[test]
    fn a_client_that_is_back_ends_its_own_link_if_that_is_there_still() {
        let mut alone = Alone::new();
        let comes = |alone: &mut Alone, link| greet(alone, LinkId(link), "tenant", writer(), CLIENT).unwrap();
        let goes = |alone: &mut Alone, link| {
            alone.osd.handle_closed(alone.now, LinkId(link), "it went", &mut alone.io);
        };
        for link in [30, 31] {
            comes(&mut alone, link);
            goes(&mut alone, link);
        }
        assert!(alone.io.closed.is_empty(), "{:?}", alone.io.closed);
        comes(&mut alone, 32);
        comes(&mut alone, 33);
        assert_eq!(alone.io.closed, [LinkId(32)]);
        // The end of the older one is told when the newer one is there.
        goes(&mut alone, 32);
        comes(&mut alone, 34);
        assert_eq!(alone.io.closed, [LinkId(32), LinkId(33)]);
        goes(&mut alone, 34);
        assert!(alone.osd.shared.links.clients.is_empty(), "nothing is kept of who is gone");
    }

    #[test]
    fn all_links_of_a_key_that_is_gone_end_in_their_order_and_no_other() {
        let mut alone = Alone::new();
        for link in 40..50 {
            let one = credential(&alone, if link % 2 == 0 { "gone" } else { "stays" }, writer());
            alone.osd.handle_accepted(LinkId(link), Some(one)).unwrap();
        }
        greet(&mut alone, LINK, "gone", writer(), CLIENT).unwrap();
        let (osd, dialled) = (OsdId(1), LinkId(51));
        let node = Some(credential(&alone, "gone", Access::Node(NodeId(1))));
        let peer = OsdLink { credential: node, ..OsdLink::new(osd, Some(Version(3)), alone.now) };
        alone.osd.shared.links.insert_osd(dialled, peer);
        let mut map = map(1);
        map.revision = 2;
        map.principals.insert("stays".to_owned(), principal(writer()));
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        assert_eq!(alone.io.closed, [7, 40, 42, 44, 46, 48, 51].map(LinkId));
        let links = &alone.osd.shared.links;
        let is_there = |link| links.get(link).is_some();
        assert!(!is_there(LINK) && !is_there(LinkId(40)) && is_there(LinkId(41)));
        // What was under way with an OSD ends when the end of its link is told.
        assert_eq!(links.link_of(osd), Some(dialled));
        alone.osd.handle_closed(alone.now, dialled, "its key was removed", &mut alone.io);
        let links = &alone.osd.shared.links;
        assert!(links.link_of(osd).is_none() && !links.may_dial(osd, alone.now));
    }
}
