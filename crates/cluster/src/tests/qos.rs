//! What is reserved is there, and what limits allow.

use super::osds::Paused;
use super::*;
use base::{Limit, Limits, Profile, Qos, RecoveryShare, Weight, WorkClass};

fn reserves(reservation: u32) -> impl Fn(&mut Qos) {
    move |qos| qos.reservation = reservation
}

#[tokio::test]
async fn no_more_is_reserved_than_osds_are_taken_to_do_in_all_volumes_and_with_all_copies() {
    let (_directory, cluster) = three().await;
    for name in ["a", "b"] {
        cluster.create_volume(name, "default", GIB).await.unwrap();
    }
    // Three OSDs, and three copies.
    cluster.change_settings(|settings| settings.osd_iops = 1000).await.unwrap();
    cluster.set_qos("a", reserves(600)).await.unwrap();
    let error = cluster.set_qos("b", reserves(401)).await.unwrap_err();
    let ClusterError::TooMuchReserved { wanted: 401, left: 400, can: 3000, .. } = &error else {
        panic!("{error}")
    };
    assert!(error.to_string().contains("millpond cluster capacity"), "{error}");
    assert_eq!(
        cluster.map().await.unwrap().volumes.values().map(|info| info.qos.reservation).max(),
        Some(600)
    );
    cluster.set_qos("b", reserves(400)).await.unwrap();
    // What is there already may be set anew, made smaller, and weighed.
    let weight = Weight::try_from(300).unwrap();
    cluster.set_qos("b", |qos| *qos = Qos { weight, ..*qos }).await.unwrap();
    cluster.set_qos("a", reserves(500)).await.unwrap();
    assert_eq!(cluster.set_qos("b", reserves(500)).await.unwrap(), Qos { reservation: 500, weight });
    // An OSD that is taken out does nothing; of a volume that is gone nothing is reserved.
    cluster.set_admission(OsdId(2), Admission::Out).await.unwrap();
    assert!(cluster.set_qos("a", reserves(501)).await.is_err());
    cluster.remove_volume("b").await.unwrap();
    cluster.set_qos("a", reserves(666)).await.unwrap();
    assert!(cluster.set_qos("a", reserves(667)).await.is_err());
}

#[tokio::test]
async fn two_who_reserve_what_is_left_for_one_do_not_both_get_it() {
    let (_directory, cluster) = three().await;
    for name in ["a", "b"] {
        cluster.create_volume(name, "default", GIB).await.unwrap();
    }
    cluster.change_settings(|settings| settings.osd_iops = 1000).await.unwrap();
    let (slow, paused, go) = Paused::before(&cluster, keys::RESERVED);
    let reserving = tokio::spawn(async move { slow.set_qos("a", reserves(600)).await });
    paused.await.unwrap();
    cluster.set_qos("b", reserves(600)).await.unwrap();
    go.send(()).unwrap();
    let error = reserving.await.unwrap().unwrap_err();
    assert!(matches!(error, ClusterError::TooMuchReserved { left: 400, .. }), "{error}");
}

#[tokio::test]
async fn a_limit_is_no_smaller_than_what_is_reserved() {
    let (_directory, cluster) = three().await;
    cluster.create_volume("a", "default", GIB).await.unwrap();
    let limit = |per_second| move |limits: &mut Limits| limits.iops = Some(Limit { per_second, burst: 0 });
    cluster.limit_volume("a", limit(500)).await.unwrap();
    let error = cluster.set_qos("a", reserves(501)).await.unwrap_err();
    assert!(
        matches!(error, ClusterError::ReservedMore { .. }) && error.to_string().contains("501"),
        "{error}"
    );
    cluster.set_qos("a", reserves(500)).await.unwrap();
    let error = cluster.limit_volume("a", limit(499)).await.unwrap_err();
    assert!(error.to_string().contains("millpond volume limit"), "{error}");
    let map = cluster.map().await.unwrap();
    let info = map.volumes.values().next().unwrap();
    assert_eq!((info.qos.reservation, info.limits.iops.unwrap().per_second), (500, 500));
}

#[tokio::test]
async fn a_profile_says_what_is_recovery_until_that_is_set_and_again_when_one_is() {
    let (_directory, cluster) = three().await;
    let shares = async || {
        let map = cluster.map().await.unwrap();
        [WorkClass::Recovery, WorkClass::Scrub].map(|class| map.share_of(class).percent())
    };
    assert_eq!(shares().await, [10, 10]);
    cluster.set_profile(Profile::Recovery).await.unwrap();
    assert_eq!(shares().await, [50, 5]);
    let share = RecoveryShare::try_from(10).unwrap();
    assert!(cluster.set_recovery_share(share).await.unwrap());
    assert!(!cluster.set_recovery_share(share).await.unwrap());
    assert_eq!(shares().await, [10, 5]);
    cluster.set_profile(Profile::Clients).await.unwrap();
    assert_eq!(shares().await, [3, 3]);
}
