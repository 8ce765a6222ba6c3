//! An etcd that wants certificates: whose are refused, what is said of one that has expired, and that a cluster lives on
//! meanwhile.

use crate::common::authority::Authority;
use crate::common::fio::fio_notices_nothing_of;
use crate::common::hosts::{HOSTS, Hosts, walk};
use crate::common::probe::Probe;
use crate::common::whole::{becomes_whole, goes_on_in, without};
use crate::common::{path, wait_until};
use testkit::prerequisites::installed;

#[test]
fn a_certificate_that_has_expired_is_told_of_and_the_cluster_lives_on_meanwhile() {
    let test = "an etcd that wants certificates";
    if !installed(test, &["openssl", "faketime"]) {
        return;
    }
    let Some(hosts) = Hosts::bare(test, 0) else { return };
    let authority = Authority::new(&hosts.scratch().join("certificates"));
    let addresses: Vec<String> = (0..HOSTS).map(|host| hosts.address(host)).collect();
    for (name, addresses, from) in [
        ("etcd", &addresses[..], "-1d"),
        ("etcd-old", &addresses[..], "-90d"),
        ("pond", &[], "-1d"),
        ("pond-old", &[], "-90d"),
    ] {
        authority.issue(name, addresses, from);
    }
    let start_etcd = |host: u32, name: &str| {
        hosts.start_etcd_with_certificate(host, authority.folder(), name);
    };
    (0..HOSTS).for_each(|host| start_etcd(host, "etcd"));
    let folder = path(authority.folder());
    let init = |name: &str| {
        format!(
            "millpond cluster init --registry etcds://{} --etcd-ca {folder}/ca.pem --etcd-certificate {folder}/{name}.pem \
             --etcd-key {folder}/{name}.key",
            addresses.join(",")
        )
    };
    let elsewhere = path(&hosts.scratch().join("elsewhere")).to_owned();
    hosts.refused_on(0, &format!("{} --dir {elsewhere}", init("pond-old")), &["xpired", "pond-old.pem"]);
    let mut rest = walk();
    rest.retain(|(_, line)| !line.starts_with("etcd "));
    rest[0].1 = init("pond");
    hosts.follow(&rest);
    fio_notices_nothing_of(&hosts, |hosts| {
        let mut probe = Probe::new(hosts);
        // A host whose certificate has expired does not come back until it has another one.
        let certificate = hosts.dir_of(2).join("etcd.pem");
        let good = std::fs::read(&certificate).expect("joining wrote it");
        let stopped = goes_on_in(hosts, without(hosts.osd_of(2)), || {
            hosts.run_on(2, "millpond node stop");
            hosts.starts_again(2)
        });
        std::fs::copy(authority.file("pond-old.pem"), &certificate).expect("a certificate can be copied");
        std::fs::copy(authority.file("pond-old.key"), hosts.dir_of(2).join("etcd.key"))
            .expect("so can a key");
        hosts.refused_on(2, "millpond status", &["xpired", path(&certificate)]);
        probe.goes_on("the certificate of h3 has expired");
        std::fs::copy(authority.file("pond.key"), hosts.dir_of(2).join("etcd.key"))
            .expect("a key can be copied");
        std::fs::write(&certificate, good).expect("a certificate can be put back");
        drop(stopped);
        becomes_whole(hosts);

        // Etcd's own: one member is done without, of all of them nothing is believed.
        hosts.kill_etcd(0);
        start_etcd(0, "etcd-old");
        hosts.volume("one-of-three", "64MiB");
        // Without a registry no group begins another epoch.
        becomes_whole(hosts);
        for host in 1..HOSTS {
            hosts.kill_etcd(host);
            start_etcd(host, "etcd-old");
        }
        wait_until("nothing that etcd says is believed", || !hosts.attempt(&["status"]).0);
        hosts.refused(&["status"], &["xpired"]);
        probe.goes_on("the certificates of etcd have expired");
        for host in 0..HOSTS {
            hosts.kill_etcd(host);
            start_etcd(host, "etcd");
        }
        becomes_whole(hosts);
        probe.goes_on("etcd has good certificates again");
    });
}
