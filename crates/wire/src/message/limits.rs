//! What OSDs ask of each other, and give, by limits of volumes and of keys.

use crate::fields::{At, Flag, Impossible, Place, fields, sealed, together};
use crate::header::{HeaderBytes, Kind};
use base::{Limited, VolumeId};

/// What a limit is of: a number, and whether it is that of a key.
struct Of<const OFFSET: usize, const BIT: u8>;

impl<const OFFSET: usize, const BIT: u8> Place<Limited> for Of<OFFSET, BIT> {
    const USED: HeaderBytes = together([<At<OFFSET> as Place<u64>>::USED, <Flag<BIT> as Place<bool>>::USED]);

    #[inline(always)]
    fn read(header: &HeaderBytes, field: &'static str) -> Result<Limited, Impossible> {
        let number = <At<OFFSET> as Place<u64>>::read(header, field)?;
        match <Flag<BIT> as Place<bool>>::read(header, field)? {
            true => Ok(Limited::Key(number)),
            false => Ok(Limited::Volume(VolumeId(number))),
        }
    }

    #[inline(always)]
    fn write(value: &Limited, header: &mut HeaderBytes) {
        let (number, is_key) = match *value {
            Limited::Volume(VolumeId(number)) => (number, false),
            Limited::Key(number) => (number, true),
        };
        At::<OFFSET>::write(&number, header);
        Flag::<BIT>::write(&is_key, header);
    }
}

fields! {
    /// What may be done by a limit: what an OSD asks for, or is given.
    Allowance {
        /// Of what the limit is.
        of: Limited = Of<16, 1>,
        /// Of a question: that is all that is wanted, whatever was asked for on this connection before. Else it is so much more. Of an
        /// answer: the limit is not known.
        is_all: bool = Flag<2>,
        /// Reads.
        reads: u32 = At<12>,
        /// Writes and zeroings.
        changes: u32 = At<24>,
        /// Bytes that are read.
        read_bytes: u64 = At<32>,
        /// Bytes that are written.
        changed_bytes: u64 = At<40>,
    }
}

impl Allowance {
    /// It as a whole message of that kind.
    #[must_use]
    pub fn encode(&self, kind: Kind) -> HeaderBytes {
        sealed(kind, 0, self)
    }
}
