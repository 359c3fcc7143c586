//! [`Payload`]: the bytes of an answer, in pieces that other answers may share.

use bytes::Bytes;

/// The bytes of an answer, in one or more pieces. Content that many peers request is held once, and each answer adds
/// its own head to it. On the wire the pieces are one message.
#[derive(Clone, Default, Debug)]
pub struct Payload {
    pieces: Vec<Bytes>,
    len: usize,
}

impl Payload {
    /// Bytes in all pieces.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All bytes in one piece; copies them if there is more than one.
    pub fn into_bytes(mut self) -> Bytes {
        match self.pieces.len() {
            0 | 1 => self.pieces.pop().unwrap_or_default(),
            _ => self.pieces.concat().into(),
        }
    }

    /// As [`Payload::into_bytes`]; it also copies a single piece if others share it.
    pub fn into_vec(self) -> Vec<u8> {
        self.into_bytes().into()
    }

    /// The pieces in order, none of them empty.
    pub(crate) fn into_pieces(self) -> Vec<Bytes> {
        self.pieces
    }
}

impl From<Vec<Bytes>> for Payload {
    fn from(mut pieces: Vec<Bytes>) -> Payload {
        pieces.retain(|piece| !piece.is_empty());
        let len = pieces.iter().map(Bytes::len).sum();
        Payload { pieces, len }
    }
}

impl From<Bytes> for Payload {
    fn from(piece: Bytes) -> Payload {
        Payload::from(vec![piece])
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Payload::from(Bytes::from(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_one_message_and_a_single_one_is_not_copied() {
        let shared = Bytes::from_static(b"part");
        let payload = Payload::from(vec![Bytes::from_static(b"head "), Bytes::new(), shared.clone()]);
        assert_eq!((payload.len(), payload.clone().into_pieces().len()), (9, 2));
        assert_eq!(payload.into_vec(), b"head part");
        let alone = Payload::from(shared.clone()).into_bytes();
        assert!(std::ptr::eq(alone.as_ptr(), shared.as_ptr()));
        assert!(Payload::from(Vec::<u8>::new()).is_empty() && Payload::default().into_bytes().is_empty());
    }
}
