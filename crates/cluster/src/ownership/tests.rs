#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use super::*;
use crate::testing::cluster_of;
use base::Generation;
use base::map::WishId;
use registry::LeaseId;
use std::time::Duration;

/// A volume, and clients that opened it.
struct Opened {
    cluster: Cluster,
    volume: VolumeId,
    leases: Vec<LeaseId>,
}

impl Opened {
    async fn new() -> Opened {
        let cluster = cluster_of(2, 4).await;
        let volume = cluster.create_volume("v", "p", 1 << 20).await.unwrap();
        let mut leases = Vec::new();
        for _ in 0..4 {
            leases.push(cluster.registry().lease_grant(Duration::from_secs(10)).await.unwrap().id);
        }
        Opened { cluster, volume, leases }
    }

    async fn generation(&self) -> Generation {
        self.cluster.map().await.unwrap().volumes[&self.volume].generation
    }

    /// A client asks, by what the map shows now.
    async fn ask(&self, client: u64) -> Owning {
        self.ask_under(client, self.generation().await).await
    }

    async fn ask_under(&self, client: u64, generation: Generation) -> Owning {
        self.ask_for(client, generation, false).await
    }

    async fn ask_for(&self, client: u64, generation: Generation, keeps: bool) -> Owning {
        let lease = self.leases[client as usize];
        let (volume, wish) = (self.volume, WishId(100 + client));
        let (client, description) = (ClientId(client), format!("client {client}"));
        let own = Own { volume, client, lease, description, wish, generation, keeps };
        self.cluster.own_by(None, own).await.unwrap()
    }

    async fn owns(&self, client: u64) -> Attachment {
        match self.ask(client).await {
            Owning::Owned(attached) => *attached,
            other => panic!("{other:?}"),
        }
    }

    async fn waits_for(&self, client: u64) -> Option<String> {
        match self.ask(client).await {
            Owning::Awaited { holder } => holder,
            other => panic!("{other:?}"),
        }
    }

    async fn gives_up(&self, client: u64, generation: Generation) {
        let give_up = GiveUp { volume: self.volume, client: ClientId(client), generation };
        self.cluster.give_up_by(None, &give_up).await.unwrap();
    }

    async fn dies(&self, client: u64) {
        self.cluster.registry().lease_revoke(self.leases[client as usize]).await.unwrap();
    }

    /// The wishes that the map shows, and whether they are granted.
    async fn wishes(&self) -> Vec<(u64, bool)> {
        let map = self.cluster.map().await.unwrap();
        let wishes = map.wishes.get(&self.volume).into_iter().flatten();
        wishes.map(|(wish, state)| (wish.0 - 100, state.is_granted)).collect()
    }
}

#[tokio::test]
async fn who_opened_a_volume_owns_it_in_turn_and_nobody_is_fenced() {
    let opened = Opened::new().await;
    let first = opened.owns(0).await;
    assert_eq!((first.generation, first.unfenced.len()), (Generation(1), 0));
    assert_eq!(opened.waits_for(1).await.as_deref(), Some("client 0"));
    assert_eq!(opened.waits_for(2).await.as_deref(), Some("client 0"));
    assert_eq!(opened.waits_for(1).await.as_deref(), Some("client 0"), "asking again loses no place");
    assert_eq!(opened.wishes().await, [(1, false), (2, false)]);
    opened.gives_up(0, first.generation).await;
    assert_eq!(opened.wishes().await, [(1, true), (2, false)]);
    // Who came later waits, though nobody has it now; and so does who had it.
    assert_eq!(opened.waits_for(2).await, None);
    assert_eq!(opened.waits_for(0).await, None);
    let second = opened.owns(1).await;
    assert_eq!((second.generation, second.unfenced.len()), (Generation(2), 0));
    assert_eq!(opened.wishes().await, [(0, false), (2, false)], "it is fulfilled");
    opened.gives_up(1, second.generation).await;
    assert_eq!(opened.wishes().await, [(0, false), (2, true)], "who asked first is first");
    let third = opened.owns(2).await;
    opened.gives_up(2, third.generation).await;
    assert!(opened.owns(0).await.unfenced.is_empty());
    assert!(opened.wishes().await.is_empty());
}

#[tokio::test]
async fn who_attached_a_volume_for_good_does_not_give_it_up() {
    let opened = Opened::new().await;
    let attach = async |shared| {
        let (client, lease) = (ClientId(3), opened.leases[3]);
        opened.cluster.attach("v", client, lease, shared, "somebody".to_owned()).await
    };
    for shared in [false, true] {
        attach(shared).await.unwrap();
        assert_eq!(opened.ask(0).await, Owning::Kept { holder: "somebody".to_owned() });
        assert!(opened.wishes().await.is_empty(), "nothing is wished of it");
        opened.cluster.detach(opened.volume, ClientId(3)).await.unwrap();
    }
    // And is told how to come to terms with one that does.
    opened.owns(0).await;
    let error = attach(false).await.unwrap_err().to_string();
    assert!(error.contains("client 0") && error.contains("--open"), "{error}");
}

#[tokio::test]
async fn an_asker_that_dies_is_passed_over() {
    let opened = Opened::new().await;
    let first = opened.owns(0).await;
    for client in [1, 2] {
        opened.waits_for(client).await;
    }
    opened.dies(1).await;
    assert_eq!(opened.wishes().await, [(2, false)]);
    opened.gives_up(0, first.generation).await;
    assert_eq!(opened.wishes().await, [(2, true)]);
    opened.dies(2).await;
    opened.owns(3).await;
}

#[tokio::test]
async fn an_owner_whose_lease_ends_before_it_gave_the_volume_up_is_fenced() {
    let opened = Opened::new().await;
    let first = opened.owns(0).await;
    opened.waits_for(1).await;
    opened.dies(0).await;
    let second = opened.owns(1).await;
    assert_eq!(second.unfenced.iter().map(|old| old.client.0).collect::<Vec<_>>(), [0]);
    // What it says then, for it had heard of the wish, comes too late: and it has nothing under way.
    opened.gives_up(0, first.generation).await;
    let left = opened.cluster.holders(opened.volume).await.unwrap();
    assert_eq!(left.iter().map(|holder| holder.client.0).collect::<Vec<_>>(), [1]);
    assert_eq!(opened.cluster.attachments(opened.volume).await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_is_asked_or_said_twice_and_done_late_undoes_nothing() {
    let opened = Opened::new().await;
    let first = opened.owns(0).await;
    // The same question once more, of somebody who heard no answer.
    assert_eq!(opened.ask_under(0, Generation(0)).await, Owning::Awaited { holder: None });
    assert_eq!(opened.generation().await, first.generation);
    opened.gives_up(0, first.generation).await;
    let second = opened.owns(0).await;
    opened.gives_up(0, first.generation).await;
    let attached = opened.cluster.attachments(opened.volume).await.unwrap();
    assert_eq!(attached.iter().map(|record| record.generation).collect::<Vec<_>>(), [second.generation]);
}

#[tokio::test]
async fn who_owns_a_volume_and_heard_no_answer_is_told_when_it_asks_again_whoever_asked_meanwhile() {
    let opened = Opened::new().await;
    opened.owns(0).await;
    assert_eq!(opened.waits_for(1).await.as_deref(), Some("client 0"));
    let told = opened.owns(0).await;
    assert_eq!((told.generation, told.unfenced.len()), (Generation(2), 0));
    opened.gives_up(0, told.generation).await;
    opened.owns(1).await;
}

#[tokio::test]
async fn wishes_are_bounded_in_number_and_go_on_under_another_lease() {
    let mut opened = Opened::new().await;
    opened.owns(0).await;
    for number in 0..WISHES_MAX as u64 {
        let (client, lease) = (ClientId(1000 + number), opened.leases[1]);
        let (volume, wish, description) = (opened.volume, WishId(1000 + number), String::new());
        let generation = opened.generation().await;
        let asked = Own { volume, client, lease, description, wish, generation, keeps: false };
        opened.cluster.own_by(None, asked).await.unwrap();
    }
    assert_eq!(opened.waits_for(2).await.as_deref(), Some("client 0"));
    assert_eq!(opened.wishes().await.len(), WISHES_MAX);
    opened.dies(1).await;
    opened.waits_for(2).await;
    let before = opened.leases[2];
    opened.leases[2] = opened.leases[3];
    opened.waits_for(2).await;
    opened.cluster.registry().lease_revoke(before).await.unwrap();
    assert!(opened.wishes().await.is_empty());
    opened.waits_for(2).await;
    assert_eq!(opened.wishes().await, [(2, false)]);
}

#[tokio::test]
async fn who_keeps_what_it_owns_is_waited_for_by_nobody_and_loses_it_where_it_is_taken_away() {
    let opened = Opened::new().await;
    let kept = async |client| match opened.ask_for(client, opened.generation().await, true).await {
        Owning::Owned(attached) => *attached,
        other => panic!("{other:?}"),
    };
    let first = kept(0).await;
    assert_eq!(opened.ask(1).await, Owning::Kept { holder: "client 0".to_owned() });
    assert!(opened.wishes().await.is_empty());
    opened.gives_up(0, first.generation).await;
    let second = opened.owns(1).await;
    assert!(second.unfenced.is_empty());
    opened.gives_up(1, second.generation).await;

    let third = kept(2).await;
    // It is that of an earlier one.
    opened.cluster.take_away("v", second.generation).await.unwrap();
    assert_eq!(opened.generation().await, third.generation);
    opened.cluster.take_away("v", third.generation).await.unwrap();
    assert_eq!(opened.generation().await, Generation(third.generation.0 + 1), "which it sees in the map");
    assert!(opened.cluster.attachments(opened.volume).await.unwrap().is_empty());
    opened.cluster.take_away("v", opened.generation().await).await.unwrap();
    assert_eq!(opened.generation().await, Generation(third.generation.0 + 1), "nobody has it");
    // It may write still, and is fenced by the next one.
    let fourth = opened.owns(3).await;
    assert_eq!(fourth.unfenced.iter().map(|old| old.client).collect::<Vec<_>>(), [ClientId(2)]);
}

#[tokio::test]
async fn a_wish_is_that_of_the_lease_it_was_made_under_whoever_names_it_and_ends_when_it_is_said() {
    let opened = Opened::new().await;
    let first = opened.owns(0).await;
    opened.waits_for(1).await;
    opened.gives_up(0, first.generation).await;
    // The map shows its name to another.
    let own = |client: u64| Own {
        volume: opened.volume,
        client: ClientId(client),
        lease: opened.leases[client as usize],
        description: String::new(),
        wish: WishId(101),
        generation: first.generation,
        keeps: false,
    };
    let forged = opened.cluster.own_by(None, own(2)).await.unwrap();
    assert!(matches!(forged, Owning::Awaited { .. }), "{forged:?}");
    opened.cluster.wish_no_more(opened.volume, WishId(101), opened.leases[2]).await.unwrap();
    assert_eq!(opened.wishes().await, [(1, true)]);
    opened.waits_for(3).await;
    opened.cluster.wish_no_more(opened.volume, WishId(101), opened.leases[1]).await.unwrap();
    assert_eq!(opened.wishes().await, [(3, false)]);
    opened.owns(3).await;
}

#[tokio::test]
async fn a_volume_is_attached_anew_by_who_had_it_last_and_by_nobody_else() {
    let opened = Opened::new().await;
    let attach = async |lease: usize, renews: bool| {
        let attach = Attach {
            volume: "v".to_owned(),
            client: ClientId(0),
            lease: opened.leases[lease],
            shared: false,
            description: String::new(),
            id: Some(opened.volume),
            knows_layers: true,
            yields: true,
            renews,
        };
        opened.cluster.attach_for(None, attach, None).await
    };
    let had = |error: ClusterError| assert!(matches!(error, ClusterError::HadByOthers { .. }), "{error}");
    had(attach(0, true).await.unwrap_err());
    attach(0, false).await.unwrap();
    // Done, and not heard: so it is asked once more.
    let renewed = [attach(0, true).await.unwrap().generation, attach(0, true).await.unwrap().generation];
    assert_eq!(renewed, [Generation(2), Generation(3)]);
    // Its lease ends, another has the volume, and gives it up again.
    opened.dies(0).await;
    let other = opened.owns(1).await;
    opened.cluster.fenced(&other).await.unwrap();
    opened.gives_up(1, other.generation).await;
    had(attach(2, true).await.unwrap_err());
}

#[tokio::test]
async fn a_volume_that_is_owned_is_not_rolled_back_and_one_that_is_only_open_is_put_nowhere() {
    let opened = Opened::new().await;
    let first = opened.owns(0).await;
    let error = opened.cluster.remove_volume("v").await.unwrap_err();
    assert!(matches!(error, ClusterError::Attached { .. }), "{error}");
    opened.waits_for(1).await;
    opened.gives_up(0, first.generation).await;
    // A wish keeps nobody from it, and nothing is left of it.
    opened.cluster.remove_volume("v").await.unwrap();
    let (volume, client, lease) = (opened.volume, ClientId(1), opened.leases[1]);
    let (wish, description, generation) = (WishId(101), String::new(), Generation(1));
    let asked = Own { volume, client, lease, description, wish, generation, keeps: false };
    let error = opened.cluster.own_by(None, asked).await.unwrap_err();
    assert!(matches!(error, ClusterError::NoSuchVolume { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_that_ask_at_once_all_have_their_turn_and_one_at_a_time() {
    let opened = std::sync::Arc::new(Opened::new().await);
    let owners = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let clients = (0..4u64).map(|client| {
        let (opened, owners) = (opened.clone(), owners.clone());
        tokio::spawn(async move {
            for _ in 0..5 {
                let attached = loop {
                    match opened.ask(client).await {
                        Owning::Owned(attached) => break attached,
                        Owning::Awaited { .. } => tokio::task::yield_now().await,
                        Owning::Kept { holder } => panic!("{holder} gives it up"),
                    }
                };
                assert!(attached.unfenced.is_empty());
                assert_eq!(owners.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                tokio::task::yield_now().await;
                owners.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                opened.gives_up(client, attached.generation).await;
            }
        })
    });
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    assert_eq!(opened.generation().await, Generation(20));
}
