//! Limits as they are set on the command line: of a volume, or of a key.

use crate::Usage;
use crate::output;
use base::Limits;
use base::limits::{BytesLimit, OperationsLimit};
use clap::Args;

/// What limits are to be.
#[derive(Args, Clone, Debug, Default)]
pub struct LimitArguments {
    /// Operations a second, or none; 5000:20000 allows 20000 at once after a pause
    #[arg(long, value_name = "RATE[:BURST]")]
    iops: Option<OperationsLimit>,
    /// Reads a second
    #[arg(long, value_name = "RATE[:BURST]")]
    read_iops: Option<OperationsLimit>,
    /// Writes, zeroings and trims a second
    #[arg(long, value_name = "RATE[:BURST]")]
    write_iops: Option<OperationsLimit>,
    /// Bytes read and written a second, for example 100MiB or 100MiB:2GiB
    #[arg(long, value_name = "SIZE[:BURST]")]
    bandwidth: Option<BytesLimit>,
    /// Bytes read a second
    #[arg(long, value_name = "SIZE[:BURST]")]
    read_bandwidth: Option<BytesLimit>,
    /// Bytes written a second
    #[arg(long, value_name = "SIZE[:BURST]")]
    write_bandwidth: Option<BytesLimit>,
    /// Take all limits off that are not named here
    #[arg(long)]
    none: bool,
    /// Print the limits as JSON
    #[arg(long)]
    json: bool,
}

impl LimitArguments {
    /// Refuses to change nothing.
    ///
    /// # Errors
    /// If nothing is named that is to be set.
    pub fn check(&self) -> anyhow::Result<()> {
        let LimitArguments { iops, read_iops, write_iops, .. } = self;
        let of_bytes = [self.bandwidth, self.read_bandwidth, self.write_bandwidth];
        let is_any = [iops, read_iops, write_iops].into_iter().any(Option::is_some)
            || of_bytes.iter().any(Option::is_some)
            || self.none;
        if !is_any {
            let what =
                "no limit is named; --iops 5000 sets one, --iops none takes it off, --none all of them";
            return Err(Usage(what.to_owned()).into());
        }
        Ok(())
    }

    /// Sets what is named, and leaves the rest as it is.
    pub fn apply(&self, limits: &mut Limits) {
        if self.none {
            *limits = Limits::default();
        }
        let operations = [
            (self.iops, &mut limits.iops),
            (self.read_iops, &mut limits.read_iops),
            (self.write_iops, &mut limits.write_iops),
        ];
        for (OperationsLimit(set), limit) in
            operations.into_iter().filter_map(|(set, limit)| Some((set?, limit)))
        {
            *limit = set;
        }
        let bytes = [
            (self.bandwidth, &mut limits.bandwidth),
            (self.read_bandwidth, &mut limits.read_bandwidth),
            (self.write_bandwidth, &mut limits.write_bandwidth),
        ];
        for (BytesLimit(set), limit) in bytes.into_iter().filter_map(|(set, limit)| Some((set?, limit))) {
            *limit = set;
        }
    }

    /// Says what the limits of something are now.
    ///
    /// # Errors
    /// If it cannot be printed.
    pub fn tell(&self, what: &str, limits: &Limits) -> anyhow::Result<()> {
        output::show(self.json, limits, || match limits.is_none() {
            true => format!("{what} has no limits\n"),
            false => format!("{what} is limited: {limits}\n"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Limit;

    #[test]
    fn what_is_named_is_set_and_the_rest_stays() {
        let mut limits = Limits::default();
        let set = |text: &str| LimitArguments { iops: text.parse().ok(), ..LimitArguments::default() };
        assert!(LimitArguments::default().check().is_err() && set("5").check().is_ok());
        set("5000:9000").apply(&mut limits);
        let bandwidth = "1MiB".parse().ok();
        LimitArguments { write_bandwidth: bandwidth, ..LimitArguments::default() }.apply(&mut limits);
        let iops = Some(Limit { per_second: 5000, burst: 9000 });
        let write_bandwidth = Some(Limit { per_second: 1 << 20, burst: 0 });
        assert_eq!(limits, Limits { iops, write_bandwidth, ..Limits::default() });
        set("none").apply(&mut limits);
        assert_eq!(limits, Limits { write_bandwidth, ..Limits::default() });
        LimitArguments { none: true, ..set("7") }.apply(&mut limits);
        assert_eq!(limits, Limits { iops: Some(Limit { per_second: 7, burst: 0 }), ..Limits::default() });
    }
}
