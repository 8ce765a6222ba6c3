//! Where the fields of a header lie, or of an entry in a body.
//!
//! [`fields`] declares a struct and the [`Place`] of each of its fields: so what is parsed and what is encoded cannot differ.
//! Places that overlap do not compile. What is no field's is reserved for later versions: it is sent as zeros, and refused
//! where there is something else.
//!
//! All of it is inlined, so that a header is read and written as if that stood there by hand.

use crate::header::{HEADER_BYTES, HeaderBytes, Kind, Prefix, Status, seal};
use crate::version::Version;
use base::{BLOCK_BYTES, Epoch, Generation, LayerId, ObjectKey, OsdId, PgId, PoolId, Sequence, VolumeId};
use std::mem::offset_of;
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// The name of a field that says what cannot be, and what it says.
#[derive(Debug)]
pub struct Impossible(pub &'static str, pub u64);

/// Where among so many bytes a `T` lies, and how. Structs of fields are their own places.
pub trait Place<T, const BYTES: usize = HEADER_BYTES> {
    /// The bits that it has.
    const USED: [u8; BYTES];
    /// What the bytes say; `field` is its name, should it be impossible.
    fn read(bytes: &[u8; BYTES], field: &'static str) -> Result<T, Impossible>;
    /// Writes it where everything is zero.
    fn write(value: &T, bytes: &mut [u8; BYTES]);

    /// Whether its parts go together, in a message of that kind.
    #[inline(always)]
    fn check(_: &T, _: Kind) -> Result<(), Impossible> {
        Ok(())
    }
}

/// What the header of a message says that may have data.
pub trait DataHead: Place<Self> + Sized {
    /// How many words stand before its data (one for each block or part of one, or more), and how many bytes it has, in a
    /// body of so many bytes at most.
    fn data(&self, body_bytes: usize) -> (usize, usize);

    /// It as the header of that kind; if it has a body, checksums and data follow.
    #[inline(always)]
    fn sealed(&self, kind: Kind, has_body: bool) -> HeaderBytes {
        let (words, data_bytes) = if has_body { self.data(usize::MAX) } else { (0, 0) };
        sealed(kind, words * size_of::<U32>() + data_bytes, self)
    }
}

/// Declares a struct of fields in a header, each with its place. If it is all that a kind says, it is encoded as that.
macro_rules! fields {
    ($(#[$doc:meta])* $name:ident $(is all of $kind:path)? $(, checked by $check:path)? {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $place:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        $crate::fields::place! {
            $name in $crate::header::HEADER_BYTES $(, checked by $check)? {
                $($field: $type = $place,)*
            }
        }

        $(impl $name {
            /// The whole message.
            #[must_use]
            pub fn encode(&self) -> $crate::header::HeaderBytes {
                $crate::fields::sealed($kind, 0, self)
            }
        })?
    };
}
pub(crate) use fields;

/// Says where the fields of a struct lie, among so many bytes.
macro_rules! place {
    ($name:ident in $bytes:path $(, checked by $check:path)? { $($field:ident: $type:ty = $place:ty,)* }) => {
        impl $crate::fields::Place<$name, { $bytes }> for $name {
            const USED: [u8; $bytes] = $crate::fields::together([
                $(<$place as $crate::fields::Place<$type, { $bytes }>>::USED),*
            ]);

            #[inline(always)]
            fn read(bytes: &[u8; $bytes], _: &'static str) -> Result<$name, $crate::fields::Impossible> {
                use $crate::fields::Place;
                $(let $field = <$place as Place<$type, { $bytes }>>::read(bytes, stringify!($field))?;)*
                Ok($name { $($field),* })
            }

            #[inline(always)]
            fn write(value: &$name, bytes: &mut [u8; $bytes]) {
                use $crate::fields::Place;
                $(<$place as Place<$type, { $bytes }>>::write(&value.$field, bytes);)*
            }

            #[inline(always)]
            fn check(value: &$name, kind: $crate::header::Kind) -> Result<(), $crate::fields::Impossible> {
                use $crate::fields::Place;
                $(<$place as Place<$type, { $bytes }>>::check(&value.$field, kind)?;)*
                $($check(value, kind)?;)?
                Ok(())
            }
        }
    };
}
pub(crate) use place;

/// All bits of some places.
pub(crate) const fn together<const BYTES: usize, const COUNT: usize>(
    places: [[u8; BYTES]; COUNT],
) -> [u8; BYTES] {
    let (mut all, mut at) = ([0; BYTES], 0);
    while at < COUNT * BYTES {
        let bits = places[at / BYTES][at % BYTES];
        assert!(all[at % BYTES] & bits == 0, "two fields have the same bits");
        all[at % BYTES] |= bits;
        at += 1;
    }
    all
}

/// These bits of a part of the bytes.
const fn bits<const BYTES: usize>(offset: usize, size: usize, bits: u8) -> [u8; BYTES] {
    let (mut all, mut at) = ([0; BYTES], offset);
    while at < offset + size {
        all[at] = bits;
        at += 1;
    }
    all
}

/// Whether everything is zero but the bits that are used. All at once: this is asked of every message.
#[inline(always)]
pub(crate) fn is_rest_zero<const BYTES: usize>(bytes: &[u8; BYTES], used: [u8; BYTES]) -> bool {
    const { assert!(BYTES.is_multiple_of(8), "no byte is behind the last word") };
    let (words, _) = bytes.as_chunks::<8>();
    let (mut rest, mut at) = (0, 0);
    while at < words.len() {
        let used = u64::from_ne_bytes(used.as_chunks().0[at]);
        rest |= u64::from_ne_bytes(words[at]) & !used;
        at += 1;
    }
    rest == 0
}

/// The bits of a header that every kind has: all of [`Prefix`] but flags and status.
pub(crate) const SHARED: HeaderBytes =
    together([bits(0, FLAGS, 0xff), bits(offset_of!(Prefix, body_bytes), size_of::<U32>(), 0xff)]);

/// The bytes of a header, with its checksum: the last thing before it is sent.
#[inline(always)]
pub(crate) fn sealed<T: Place<T>>(kind: Kind, body_bytes: usize, fields: &T) -> HeaderBytes {
    let mut header = [0; HEADER_BYTES];
    T::write(fields, &mut header);
    let (prefix, _) = Prefix::mut_from_prefix(&mut header).expect("a header is longer than its prefix");
    (prefix.kind, prefix.body_bytes) = (kind as u8, (body_bytes as u32).into());
    seal(&mut header);
    header
}

/// A value that is the same number wherever it lies.
pub(crate) trait Value: Copy {
    /// How many bytes it has.
    const SIZE: usize;
    /// The value, or the number that says none.
    fn of(bytes: &[u8]) -> Result<Self, u64>;
    fn put(self, bytes: &mut [u8]);
}

macro_rules! value {
    ($type:ty as $number:ty, |$read:ident| $value:expr, |$written:ident| $as_number:expr) => {
        impl Value for $type {
            const SIZE: usize = size_of::<$number>();

            #[inline(always)]
            fn of(bytes: &[u8]) -> Result<$type, u64> {
                let $read = <$number>::from_le_bytes(bytes.try_into().expect("a value has its size"));
                $value
            }

            #[inline(always)]
            fn put(self, bytes: &mut [u8]) {
                let $written = self;
                bytes.copy_from_slice(&<$number>::to_le_bytes($as_number));
            }
        }
    };
}
value!(u16 as u16, |number| Ok(number), |number| number);
value!(u32 as u32, |number| Ok(number), |number| number);
value!(u64 as u64, |number| Ok(number), |number| number);
value!(Epoch as u32, |number| Ok(Epoch(number)), |epoch| epoch.0);
value!(Generation as u32, |number| Ok(Generation(number)), |generation| generation.0);
value!(Sequence as u64, |number| Ok(Sequence(number)), |sequence| sequence.0);
value!(VolumeId as u64, |number| Ok(VolumeId(number)), |volume| volume.0);
value!(LayerId as u64, |number| Ok(LayerId(number)), |layer| layer.0);
value!(OsdId as u32, |number| Ok(OsdId(number)), |osd| osd.0);
value!(Status as u16, |number| Status::from_number(number).ok_or(number.into()), |status| status as u16);
// What names no version is from before there was a second one.
value!(Version as u16, |number| Ok(if number == 0 { Version::FIRST } else { Version(number) }), |version| {
    version.0
});
// First the pool, then the group's number in it.
value!(PgId as u64, |number| Ok(PgId { pool: PoolId(number as u32), index: (number >> 32) as u32 }), |pg| {
    u64::from(pg.index) << 32 | u64::from(pg.pool.0)
});

/// A value, from there on.
pub(crate) struct At<const OFFSET: usize>;

impl<const OFFSET: usize, const BYTES: usize, T: Value> Place<T, BYTES> for At<OFFSET> {
    const USED: [u8; BYTES] = bits(OFFSET, T::SIZE, 0xff);

    #[inline(always)]
    fn read(bytes: &[u8; BYTES], field: &'static str) -> Result<T, Impossible> {
        T::of(&bytes[OFFSET..OFFSET + T::SIZE]).map_err(|number| Impossible(field, number))
    }

    #[inline(always)]
    fn write(value: &T, bytes: &mut [u8; BYTES]) {
        value.put(&mut bytes[OFFSET..OFFSET + T::SIZE]);
    }
}

/// The status of [`Prefix`].
pub(crate) type InPrefix = At<{ offset_of!(Prefix, status) }>;

const FLAGS: usize = offset_of!(Prefix, flags);

/// Whether a bit of the flags is set.
pub(crate) struct Flag<const BIT: u8>;

impl<const BIT: u8> Place<bool> for Flag<BIT> {
    const USED: HeaderBytes = bits(FLAGS, 1, BIT);

    #[inline(always)]
    fn read(header: &HeaderBytes, _: &'static str) -> Result<bool, Impossible> {
        Ok(header[FLAGS] & BIT != 0)
    }

    #[inline(always)]
    fn write(value: &bool, header: &mut HeaderBytes) {
        header[FLAGS] |= if *value { BIT } else { 0 };
    }
}

/// At that place if a bit of the flags is set; else it is zero there.
pub(crate) struct If<const BIT: u8, P>(P);

impl<const BIT: u8, T, P: Place<T>> Place<Option<T>> for If<BIT, P> {
    const USED: HeaderBytes = together([Flag::<BIT>::USED, P::USED]);

    #[inline(always)]
    fn read(header: &HeaderBytes, field: &'static str) -> Result<Option<T>, Impossible> {
        if header[FLAGS] & BIT != 0 {
            return P::read(header, field).map(Some);
        }
        let stray = header.iter().zip(P::USED).find(|(byte, used)| *byte & used != 0);
        stray.map_or(Ok(None), |(byte, _)| Err(Impossible(field, u64::from(*byte))))
    }

    #[inline(always)]
    fn write(value: &Option<T>, header: &mut HeaderBytes) {
        if let Some(value) = value {
            header[FLAGS] |= BIT;
            P::write(value, header);
        }
    }
}

/// Two values, each at its place.
impl<T, U, P: Place<T>, Q: Place<U>> Place<(T, U)> for (P, Q) {
    const USED: HeaderBytes = together([P::USED, Q::USED]);

    #[inline(always)]
    fn read(header: &HeaderBytes, field: &'static str) -> Result<(T, U), Impossible> {
        Ok((P::read(header, field)?, Q::read(header, field)?))
    }

    #[inline(always)]
    fn write((first, second): &(T, U), header: &mut HeaderBytes) {
        P::write(first, header);
        Q::write(second, header);
    }
}

/// Nothing.
impl Place<()> for () {
    const USED: HeaderBytes = [0; HEADER_BYTES];

    #[inline(always)]
    fn read(_: &HeaderBytes, _: &'static str) -> Result<(), Impossible> {
        Ok(())
    }

    #[inline(always)]
    fn write((): &(), _: &mut HeaderBytes) {}
}

/// A small number times a unit, in four bytes.
pub(crate) struct Units<const OFFSET: usize, const UNIT: usize>;

impl<const OFFSET: usize, const UNIT: usize> Place<u16> for Units<OFFSET, UNIT> {
    const USED: HeaderBytes = bits(OFFSET, size_of::<U32>(), 0xff);

    #[inline(always)]
    fn read(header: &HeaderBytes, field: &'static str) -> Result<u16, Impossible> {
        let number: u32 = At::<OFFSET>::read(header, field)?;
        match u16::try_from(number / UNIT as u32) {
            Ok(units) if number.is_multiple_of(UNIT as u32) => Ok(units),
            _ => Err(Impossible(field, u64::from(number))),
        }
    }

    #[inline(always)]
    fn write(value: &u16, header: &mut HeaderBytes) {
        At::<OFFSET>::write(&(u32::from(*value) * UNIT as u32), header);
    }
}

/// A number of blocks, in bytes.
pub(crate) type InBytes<const OFFSET: usize> = Units<OFFSET, BLOCK_BYTES>;

place! {
    ObjectKey in HEADER_BYTES {
        layer: LayerId = At<24>,
        object: u32 = At<32>,
        pg: PgId = At<40>,
    }
}
