//! A network of a test's own: each node in a network namespace, a bridge between them and the test, and links that can be
//! cut one way, or made thin. Needs root, `ip`, `nft` and `tc`.

use super::{attempt, run};
use std::collections::BTreeSet;
use std::fs::File;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use testkit::prerequisites::{installed, is_root};

/// Every interface and namespace of such networks begins so; the test's process id follows.
const PREFIX: &str = "mp";
/// Networks are 10.213.N.0/24.
const NETWORKS: &str = "10.213";

/// Someone with an address in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Node(u32),
    /// The test itself, and the clients that it starts.
    Clients,
}

/// See the module's documentation. It goes away when dropped; what runs in it must have ended by then.
pub struct Network {
    name: String,
    subnet: String,
    nodes: u32,
}

impl Network {
    /// Makes one of so many nodes, or says which test is left out because that cannot be done here.
    pub fn make(test: &str, nodes: u32) -> Option<Network> {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        if !is_root(test, "a network namespace") || !installed(test, &["ip", "nft", "tc"]) {
            return None;
        }
        // One after the other, so that no two tests, of whichever process, take the same addresses.
        let lock =
            File::create(concat!(env!("CARGO_TARGET_TMPDIR"), "/networks.lock")).expect("a file can be made");
        lock.lock().expect("it can be locked");
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        remove_those_of_the_dead();
        let name = format!("{PREFIX}{}x{number}", std::process::id());
        let network = Network { name, subnet: free_subnet(), nodes };
        // An older process may have had this one's id.
        remove(&network.name);
        let bridge = network.bridge();
        ip(&["link", "add", &bridge, "type", "bridge"]);
        ip(&["address", "add", &format!("{}/24", network.address(Peer::Clients)), "dev", &bridge]);
        ip(&["link", "set", &bridge, "up"]);
        (0..nodes).for_each(|node| network.add_node(node));
        Some(network)
    }

    fn add_node(&self, node: u32) {
        let (namespace, port) = (self.namespace(node), format!("{}p{node}", self.name));
        ip(&["netns", "add", &namespace]);
        ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &namespace]);
        ip(&["link", "set", &port, "master", &self.bridge(), "up"]);
        ip(&["-n", &namespace, "link", "set", "lo", "up"]);
        let address = format!("{}/24", self.address(Peer::Node(node)));
        ip(&["-n", &namespace, "address", "add", &address, "dev", "eth0"]);
        ip(&["-n", &namespace, "link", "set", "eth0", "up"]);
        self.filter(node, "add table ip cut");
        self.filter(node, "add chain ip cut in { type filter hook input priority 0; }");
        self.filter(node, "add chain ip cut out { type filter hook output priority 0; }");
    }

    /// The flag by which `up` starts nodes in it.
    pub fn flag(&self) -> String {
        format!("--network-namespaces={}n@{}", self.name, self.address(Peer::Node(0)))
    }

    /// Lets nothing get from one to the other.
    pub fn cut(&self, from: Peer, to: Peer) -> Cut<'_> {
        // In a namespace, so that the rule goes away with it.
        match (from, to) {
            (_, Peer::Node(node)) => self.filter(node, &self.deaf_to(&[from])),
            (Peer::Node(node), Peer::Clients) => self.filter(node, &self.mute_to(&[to])),
            (Peer::Clients, Peer::Clients) => panic!("clients have no link to themselves"),
        }
        Cut { network: self, since: Instant::now() }
    }

    /// Lets nothing get through between a node and those others, from one moment on: of a node that loses the others one
    /// after the other, each loss is a failure of its own.
    pub fn cut_off(&self, node: u32, others: &[Peer]) -> Cut<'_> {
        self.filter(node, &format!("{}; {}", self.deaf_to(others), self.mute_to(others)));
        Cut { network: self, since: Instant::now() }
    }

    /// Cuts a node off from the other nodes.
    pub fn cut_off_from_nodes(&self, node: u32) -> Cut<'_> {
        self.cut_off(node, &self.others(node))
    }

    /// Cuts a node off from the other nodes and from clients.
    pub fn cut_off_from_all(&self, node: u32) -> Cut<'_> {
        self.cut_off(node, &[&self.others(node)[..], &[Peer::Clients]].concat())
    }

    fn others(&self, node: u32) -> Vec<Peer> {
        (0..self.nodes).filter(|other| *other != node).map(Peer::Node).collect()
    }

    /// Lets nothing get from one to a port of a node until [`Self::heal`].
    pub fn close(&self, node: u32, port: u16, to: Peer) {
        let address = self.address(to);
        self.filter(node, &format!("add rule ip cut in ip saddr {address} tcp dport {port} drop"));
    }

    /// Everything gets through again.
    pub fn heal(&self) {
        (0..self.nodes).for_each(|node| self.filter(node, "flush table ip cut"));
    }

    /// Lets so much get out of a node in a second and no more, as `tc` names it, until [`Self::unlimit`].
    pub fn limit(&self, node: u32, rate: &str) {
        let namespace = self.namespace(node);
        // The burst must hold what is sent in a tick at that rate (tc-tbf(8)); what waits longer than that is dropped.
        let bucket = ["burst", "256kb", "latency", "100ms"];
        let add = ["-n", &namespace, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate];
        run("tc", &[&add[..], &bucket[..]].concat());
    }

    /// Whatever is sent gets out again.
    pub fn unlimit(&self, node: u32) {
        run("tc", &["-n", &self.namespace(node), "qdisc", "delete", "dev", "eth0", "root"]);
    }

    fn deaf_to(&self, others: &[Peer]) -> String {
        format!("add rule ip cut in ip saddr {{ {} }} drop", self.addresses(others))
    }

    fn mute_to(&self, others: &[Peer]) -> String {
        format!("add rule ip cut out ip daddr {{ {} }} drop", self.addresses(others))
    }

    fn addresses(&self, peers: &[Peer]) -> String {
        peers.iter().map(|peer| self.address(*peer)).collect::<Vec<_>>().join(", ")
    }

    /// Runs commands of nft, all of which take effect at once.
    fn filter(&self, node: u32, command: &str) {
        ip(&["netns", "exec", &self.namespace(node), "nft", command]);
    }

    fn bridge(&self) -> String {
        format!("{}b", self.name)
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// The namespace of a node.
    pub fn namespace(&self, node: u32) -> String {
        format!("{}n{node}", self.name)
    }

    /// Where somebody is.
    pub fn address(&self, peer: Peer) -> String {
        match peer {
            Peer::Node(node) => format!("{}.{}", self.subnet, node + 1),
            Peer::Clients => format!("{}.254", self.subnet),
        }
    }
}

/// Links that let nothing through until this is dropped; then all links do.
#[must_use = "dropped, it heals the links"]
pub struct Cut<'a> {
    network: &'a Network,
    since: Instant,
}

impl Cut<'_> {
    /// Lets it last for so long in all.
    pub fn lasts(&self, time: Duration) {
        std::thread::sleep(time.saturating_sub(self.since.elapsed()));
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        // A test that failed takes the network away as a whole.
        if !std::thread::panicking() {
            self.network.heal();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

fn ip(arguments: &[&str]) {
    run("ip", arguments);
}

/// The names that `ip` lists.
fn listed(arguments: &[&str]) -> Vec<String> {
    let text = run("ip", arguments);
    // A name is the first word, or the second behind a number; a veth's stands before its peer's.
    let name = |line: &str| {
        let word = line.split_ascii_whitespace().find(|word| word.starts_with(PREFIX))?;
        Some(word.trim_end_matches(':').split('@').next()?.to_owned())
    };
    text.lines().filter_map(name).collect()
}

/// Takes away every namespace and interface whose name begins so. The far end of a veth and the rules in a namespace
/// go with it.
fn remove(name: &str) {
    let is_own = |found: &String| {
        // Network 1 of a process is not network 12.
        found.strip_prefix(name).is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
    };
    for link in listed(&["-oneline", "link", "show"]).iter().filter(|found| is_own(found)) {
        // A part of a pair may have gone with the other one.
        attempt("ip", &["link", "delete", link]);
    }
    for namespace in listed(&["netns", "list"]).iter().filter(|found| is_own(found)) {
        attempt("ip", &["netns", "delete", namespace]);
    }
}

/// Takes away what runs left behind that were killed.
fn remove_those_of_the_dead() {
    let mut found = listed(&["-oneline", "link", "show"]);
    found.extend(listed(&["netns", "list"]));
    let networks: BTreeSet<(i32, String)> = found
        .iter()
        .filter_map(|found| {
            let (pid, rest) = found.strip_prefix(PREFIX)?.split_once('x')?;
            let number: String = rest.chars().take_while(char::is_ascii_digit).collect();
            Some((pid.parse().ok()?, format!("{PREFIX}{pid}x{number}")))
        })
        .collect();
    for (pid, name) in networks {
        if !super::pond::runs(pid) {
            remove(&name);
        }
    }
}

/// Addresses that no interface has.
fn free_subnet() -> String {
    let taken = run("ip", &["-oneline", "-4", "address", "show"]);
    let first = std::process::id();
    let subnets = (0..=255).map(|step| format!("{NETWORKS}.{}", (first + step) % 256));
    subnets.into_iter().find(|subnet| !taken.contains(&format!(" {subnet}."))).expect("some subnet is free")
}
