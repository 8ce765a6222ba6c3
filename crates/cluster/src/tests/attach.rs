//! Volumes that are attached: who may be beside whom, and who is to be fenced.

use super::*;

#[tokio::test]
async fn an_exclusive_attach_keeps_others_out_and_raises_the_generation() {
    let (_directory, cluster) = three().await;
    let volume = cluster.create_volume("v", "default", GIB).await.unwrap();
    let (one, two) = (ClientId(1), ClientId(2));
    let (lease_one, lease_two) = (lease(&cluster).await, lease(&cluster).await);
    let attach =
        |client, lease, shared, who: &str| cluster.attach("v", client, lease, shared, who.to_owned());

    let attachment = attach(one, lease_one, false, "process 71 on alpha").await.unwrap();
    assert_eq!((attachment.id, attachment.generation), (volume, Generation(1)));
    assert_eq!(attachment.info.generation, Generation(1));
    for shared in [false, true] {
        let error = attach(two, lease_two, shared, "process 72 on beta").await.unwrap_err();
        assert!(error.to_string().contains("process 71 on alpha"), "{error}");
    }
    let error = cluster.remove_volume("v").await.unwrap_err();
    assert!(matches!(error, ClusterError::Attached { .. }), "{error}");
    assert_eq!(attach(one, lease_one, false, "again").await.unwrap().generation, Generation(2));

    cluster.registry().lease_revoke(lease_one).await.unwrap();
    assert_eq!(cluster.attachments(volume).await.unwrap(), []);
    assert_eq!(attach(two, lease_two, false, "two").await.unwrap().generation, Generation(3));
    cluster.detach(volume, two).await.unwrap();
    cluster.detach(volume, two).await.unwrap();
    cluster.remove_volume("v").await.unwrap();
    let error = attach(two, lease_two, false, "two").await.unwrap_err();
    assert!(matches!(error, ClusterError::NoSuchVolume { .. }), "{error}");
}

#[tokio::test]
async fn whoever_names_an_id_attaches_no_other_volume_that_has_the_name_by_now() {
    let (_directory, cluster) = three().await;
    let volume = cluster.create_volume("v", "default", GIB).await.unwrap();
    cluster.rename_volume("v", "w").await.unwrap();
    let other = cluster.create_volume("v", "default", GIB).await.unwrap();
    let lease = lease(&cluster).await;
    let attach = async |name: &str| {
        let (description, client) = ("somebody".to_owned(), ClientId(1));
        let asked = Attach {
            volume: name.to_owned(),
            client,
            lease,
            shared: false,
            description,
            id: Some(volume),
            knows_layers: true,
            yields: false,
            renews: false,
        };
        cluster.attach_by(None, asked).await
    };
    assert!(matches!(attach("v").await, Err(ClusterError::NoSuchVolume { .. })));
    assert_eq!(cluster.map().await.unwrap().volumes[&other].generation, Generation(0));
    assert_eq!(attach("w").await.unwrap().id, volume);
}

#[tokio::test]
async fn an_attachment_whose_lease_ended_goes_on_unless_somebody_else_attached() {
    let (_directory, cluster) = three().await;
    let volume = cluster.create_volume("v", "default", GIB).await.unwrap();
    let attach = async |client, lease, shared| {
        let attached = cluster.attach("v", ClientId(client), lease, shared, format!("client {client}")).await;
        attached.unwrap().generation
    };
    let revoke = async |lease| cluster.registry().lease_revoke(lease).await.unwrap();
    let resume = async |client, generation, lease| {
        let client = ClientId(client);
        cluster.resume_by(None, &Resume { volume, client, generation, lease }).await.unwrap()
    };
    let first = lease(&cluster).await;
    let generation = attach(1, first, false).await;
    revoke(first).await;
    let second = lease(&cluster).await;
    assert!(resume(1, generation, second).await);
    assert_eq!(cluster.attachments(volume).await.unwrap().len(), 1, "it keeps others out again");
    cluster.resize_volume("v", 2 * GIB, false).await.unwrap();
    assert!(resume(1, generation, second).await, "it may be asked again, and the size is no matter");

    // Somebody came and went, and has fenced it perhaps.
    revoke(second).await;
    let other = lease(&cluster).await;
    attach(2, other, false).await;
    let third = lease(&cluster).await;
    assert!(!resume(1, generation, third).await, "somebody has it");
    revoke(other).await;
    assert!(!resume(1, generation, third).await, "somebody had it");
    assert!(cluster.attachments(volume).await.unwrap().is_empty());

    // Those who share it bear with each other.
    let generation = attach(3, third, true).await;
    revoke(third).await;
    let (fourth, fifth) = (lease(&cluster).await, lease(&cluster).await);
    attach(4, fourth, true).await;
    assert!(resume(3, generation, fifth).await);
    for lease in [fourth, fifth] {
        revoke(lease).await;
    }
    cluster.detach(volume, ClientId(3)).await.unwrap();
    let sixth = lease(&cluster).await;
    assert!(!resume(3, generation, sixth).await, "it has said that it is done");
    cluster.remove_volume("v").await.unwrap();
    assert!(!resume(4, generation, sixth).await, "the volume is gone");
}

#[tokio::test]
async fn who_did_not_detach_is_to_be_fenced_until_it_was() {
    let (_directory, cluster) = three().await;
    let volume = cluster.create_volume("v", "default", GIB).await.unwrap();
    let attach = async |client, shared| {
        let lease = lease(&cluster).await;
        let attached = cluster.attach("v", ClientId(client), lease, shared, format!("client {client}")).await;
        let attached = attached.unwrap();
        let clients: Vec<u64> = attached.unfenced.iter().map(|old| old.client.0).collect();
        (lease, attached, clients)
    };
    let revoke = async |lease| cluster.registry().lease_revoke(lease).await.unwrap();
    let (first, _, unfenced) = attach(1, false).await;
    assert_eq!(unfenced, Vec::<u64>::new());
    revoke(first).await;
    // Who came next was gone before it had fenced anybody.
    let (second, _, unfenced) = attach(2, false).await;
    assert_eq!(unfenced, [1]);
    revoke(second).await;
    // One who would share it shares it with others who do.
    let (third, attached, unfenced) = attach(3, true).await;
    assert_eq!((unfenced.as_slice(), attached.generation), ([1u64, 2].as_slice(), Generation(3)));
    let (fourth, attached, unfenced) = attach(4, true).await;
    assert_eq!((unfenced.as_slice(), attached.generation), ([1u64, 2].as_slice(), Generation(3)));
    cluster.fenced(&attached).await.unwrap();
    revoke(third).await;
    let (fifth, attached, unfenced) = attach(5, true).await;
    assert_eq!((unfenced.as_slice(), attached.generation), ([0u64; 0].as_slice(), Generation(3)));
    cluster.detach(volume, ClientId(4)).await.unwrap();
    cluster.detach(volume, ClientId(5)).await.unwrap();
    let (_, attached, unfenced) = attach(6, false).await;
    assert_eq!((unfenced.as_slice(), attached.generation), ([3u64].as_slice(), Generation(4)));
    cluster.detach(volume, ClientId(6)).await.unwrap();
    revoke(fourth).await;
    revoke(fifth).await;
    cluster.remove_volume("v").await.unwrap();
    let left = cluster.registry().range("millpond/holder/").await.unwrap().entries;
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn shared_attaches_coexist_with_each_other_only() {
    let (_directory, cluster) = three().await;
    let volume = cluster.create_volume("v", "default", GIB).await.unwrap();
    let lease = lease(&cluster).await;
    let attach =
        |client, shared| cluster.attach("v", ClientId(client), lease, shared, format!("client {client}"));
    assert_eq!(attach(9, false).await.unwrap().generation, Generation(1));
    cluster.detach(volume, ClientId(9)).await.unwrap();
    assert_eq!(attach(1, true).await.unwrap().generation, Generation(1));
    assert_eq!(attach(2, true).await.unwrap().generation, Generation(1));
    let error = attach(3, false).await.unwrap_err();
    assert!(error.to_string().contains("--shared"), "{error}");
    let holders = cluster.attachments(volume).await.unwrap();
    assert_eq!(holders.iter().map(|holder| holder.client.0).collect::<Vec<_>>(), [1, 2]);
    assert!(holders.iter().all(|holder| holder.shared));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_attaching_at_once_one_succeeds_and_a_removal_never_meets_a_holder() {
    let (_directory, cluster) = three().await;
    for round in 0..15u64 {
        let name = format!("v{round}");
        let volume = cluster.create_volume(&name, "default", GIB).await.unwrap();
        let lease = lease(&cluster).await;
        let tasks: Vec<_> = (0..6u64)
            .map(|client| {
                let (cluster, name) = (cluster.clone(), name.clone());
                let shared = client >= 4;
                tokio::spawn(async move {
                    cluster
                        .attach(&name, ClientId(client), lease, shared, format!("client {client}"))
                        .await
                        .is_ok()
                })
            })
            .collect();
        let removed = cluster.remove_volume(&name).await.is_ok();
        let mut attached = Vec::new();
        for (client, task) in tasks.into_iter().enumerate() {
            if task.await.unwrap() {
                attached.push(client);
            }
        }
        assert_eq!(removed, attached.is_empty(), "{attached:?}");
        let exclusive = attached.iter().filter(|&&client| client < 4).count();
        assert!(exclusive == 0 || attached.len() == 1, "{attached:?}");
        let generation = cluster.map().await.unwrap().volumes[&volume].generation;
        assert_eq!(generation, Generation(exclusive as u32));
    }
}
