//! Whether operations go on, in all placement groups.

use super::PATIENCE;
use super::door::Door;
use super::nbd::{NbdClient, Refusal};
use super::site::Site;
use super::whole::{BLOCK, groups};
use std::time::Instant;

/// A client that looks whether operations go on, on a volume of its own.
pub struct Probe<'a> {
    site: &'a Site,
    client: NbdClient,
    stamp: u8,
    _door: Door,
}

impl<'a> Probe<'a> {
    /// Spread over all groups, most likely.
    const PLACES: u64 = 48;

    /// Makes the volume and serves it.
    pub fn new(site: &'a Site) -> Probe<'a> {
        site.volume("probe", "256MiB");
        // What cannot be done in time is told with the reason instead of waiting for it.
        let door = site.serve_with("probe", &["--timeout", &format!("{}s", PATIENCE.as_secs())]);
        Probe { site, client: door.client(), stamp: 0, _door: door }
    }

    /// Writes and reads in all groups. How long that takes is measured elsewhere.
    #[track_caller]
    pub fn goes_on(&mut self, what: &str) {
        let began = Instant::now();
        self.stamp = self.stamp.wrapping_add(1);
        let data = vec![self.stamp; BLOCK as usize];
        for place in 0..Self::PLACES {
            let written = self.client.write(place * (4 << 20), &data);
            written.unwrap_or_else(|refusal| self.is_stuck(what, &refusal));
        }
        for place in 0..Self::PLACES {
            let found = self.client.read(place * (4 << 20), BLOCK as u32);
            let found = found.unwrap_or_else(|refusal| self.is_stuck(what, &refusal));
            assert!(found == data, "{what}: block {place} is old");
        }
        eprintln!("{what}: operations in all groups took {:.1} s", began.elapsed().as_secs_f64());
    }

    #[track_caller]
    fn is_stuck(&self, what: &str, refusal: &Refusal) -> ! {
        let groups = groups(self.site);
        let waiting: Vec<String> =
            groups.iter().filter(|group| group["state"] != "active").map(ToString::to_string).collect();
        panic!("{what}: {}; not active: {}", refusal.message, waiting.join("\n"));
    }
}
