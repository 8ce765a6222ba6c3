//! What the headers of all kinds have in common, and which kinds there are. Drawn in docs/protocol.md.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;

/// The bytes of a header.
pub type HeaderBytes = [u8; HEADER_BYTES];

/// What every header begins with, little-endian.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub(crate) struct Prefix {
    /// CRC-32C of the 60 bytes that follow.
    pub header_crc32c: U32,
    /// One of [`Kind`].
    pub kind: u8,
    /// Bits that qualify the kind: a `Flag` of its fields each.
    pub flags: u8,
    /// One of [`Status`], if the kind has one.
    pub status: U16,
    /// Bytes after the header.
    pub body_bytes: U32,
}

/// Fills in a header's checksum.
pub fn seal(header: &mut HeaderBytes) {
    let header_crc32c = base::crc32c(&header[size_of::<U32>()..]);
    header[..size_of::<U32>()].copy_from_slice(&header_crc32c.to_le_bytes());
}

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $number:ty { $($(#[$variant_doc:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr($number)]
        pub enum $name { $($(#[$variant_doc])* $variant = $value,)* }

        impl $name {
            /// All there are.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The value that number stands for, if any.
            #[must_use]
            pub fn from_number(number: $number) -> Option<$name> {
                match number { $($value => Some($name::$variant),)* _ => None }
            }
        }
    };
}

codes! {
    /// What a message is.
    Kind: u8 {
        /// The first message of whoever connects.
        Hello = 1,
        /// The answer to a hello that was accepted.
        Welcome = 2,
        /// The answer to anything that ends the connection.
        Refused = 3,
        /// Client to primary: read a range of an object.
        Read = 4,
        /// Client to primary: write a range of an object.
        Write = 5,
        /// Client to primary: make whole blocks of an object read as zeros, and free their space.
        Zero = 6,
        /// Client to primary: which blocks of an object are allocated.
        Allocated = 7,
        /// Primary to client: the answer to the four above, to what changed, and of the space.
        Reply = 8,
        /// Primary to replica: apply this write.
        ReplicateWrite = 9,
        /// Primary to replica: apply this zeroing.
        ReplicateZero = 10,
        /// Replica to primary: replicated messages are on stable media.
        ReplicateAck = 11,
        /// Replica to primary: a replicated message was refused, and so is what follows it in its placement group.
        ReplicateRefused = 12,
        /// Primary to replica: I have claimed this epoch; where are you?
        Query = 13,
        /// Replica to primary: the answer to a query, with the newest entries of the log.
        Position = 14,
        /// Primary to replica: the epoch begins with a mark. Counts as a replicated message. To a learner: what is ordered
        /// from there on is sent to you too.
        Activate = 15,
        /// Between OSDs: asks for a lease, grants one, or both.
        Lease = 16,
        /// Primary to learner: what these blocks hold. Counts as a replicated message.
        PushWrite = 17,
        /// Primary to learner: these blocks hold zeros. Counts as a replicated message.
        PushZero = 18,
        /// Primary to learner: which objects of the group do you have?
        ListObjects = 19,
        /// Learner to primary: the answer, with how current each is.
        Objects = 20,
        /// Primary to learner: which blocks of that object do you have?
        ListBlocks = 21,
        /// Learner to primary: the answer.
        Blocks = 22,
        /// Primary to learner: an entry of the group's log from before its join. Counts as a replicated message.
        PushEntry = 23,
        /// Primary to member: what do these blocks hold? The primary's own copy is damaged.
        Fetch = 24,
        /// Member to primary: the answer.
        Fetched = 25,
        /// Primary to member: do these blocks verify, and what do they hold in short?
        Check = 26,
        /// Member to primary: the answer.
        Checked = 27,
        /// Client to OSD, and OSD to OSD: serve nobody any more who attached the volume under an older generation.
        Fence = 28,
        /// The answer: to an OSD, that it is so here; to a client, that it is so wherever this OSD has a say.
        FenceDone = 29,
        /// Primary to learner: what this block held is lost. Counts as a replicated message.
        PushLost = 30,
        /// Primary to replica: the epoch has begun, you have everything that was ordered before it.
        Serves = 31,
        /// A learner has everything that was sent to it before, and that is all there is: its log tells what it has.
        /// Counts as a replicated message.
        Whole = 32,
        /// Primary to learner: you were sent all of the objects up to this one. Counts as a replicated message.
        Reached = 33,
        /// Primary to replica: these blocks of a layer read as zeros, whatever lies beneath it.
        ReplicateHole = 34,
        /// Primary to learner: the same. Counts as a replicated message.
        PushHole = 35,
        /// Client to primary: of which blocks of an object does a layer hold something else than another one, and which of them are
        /// allocated?
        Changed = 36,
        /// Client to primary: what room does a volume take in an object, and what of it for which of its snapshots alone?
        Space = 37,
        /// Primary to the home of a limit: its clients want to do so much more by it.
        AskAllowance = 38,
        /// The answer, as it comes: so much may be begun.
        Allowance = 39,
    }
}

codes! {
    /// How a request ended.
    Status: u16 {
        /// It was done; a write is on stable media of every in-sync replica.
        Ok = 0,
        /// This OSD is not the primary of that placement group: ask the registry who is.
        NotPrimary = 1,
        /// The request's epoch is not the group's; the reply has the newer one.
        StaleEpoch = 2,
        /// The group cannot serve now; try again.
        NotActive = 3,
        /// The volume was attached anew by somebody else; the reply has the newer generation.
        Fenced = 4,
        /// An OSD of the group is full.
        NoSpace = 5,
        /// Stored bytes do not match their checksum; the reply has the block's offset, and the OSD.
        Damaged = 6,
        /// The bytes of a write did not match their checksum when they arrived.
        CorruptPayload = 7,
        /// The volume does not exist, or was removed.
        NoSuchVolume = 8,
        /// The drive failed; the reply has the OSD.
        DeviceFailed = 9,
        /// The client's key does not allow it.
        Forbidden = 10,
        /// It was sent before, and whether it was done then nobody can tell any more: others may have changed the same blocks
        /// since. It was not done now.
        OutcomeUnknown = 11,
        /// It reaches beyond the end of the volume, as far as this OSD knows; try again, unless a newer map says so too.
        BeyondEnd = 12,
        /// Nothing is done in that layer any more, as far as this OSD knows: a change goes to the newest one of the volume, and read is
        /// that one or a snapshot. Try again by the newest map.
        Frozen = 13,
        /// No end of it: it waits for a limit of its volume or its key, and is answered when that lets it begin.
        Throttled = 14,
        /// A limit of its volume or its key lets it begin now, and nothing was kept of it: send it again at once.
        SendAgain = 15,
    }
}
