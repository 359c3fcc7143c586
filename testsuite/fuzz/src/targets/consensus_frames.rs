//! Frames between validators. Decoding never panics. A frame that decodes is the only encoding of its content. The
//! contents of an order or an outcome are opened within their bounds.

use slipstream_consensus::simulated::{
    Ordered, OutcomeParts, Request, Response, decode_request, decode_response, encode,
};
use slipstream_eve::{Order, SignedOrder};
use slipstream_executor::{decode_body, open_hints};
use slipstream_types::{
    Address, BatchNumber, Blob, BlobKind, Body, Delta, Digest, Epoch, Receipts, batch::content_digest,
};

use super::{
    consensus::messages,
    world::{CHAIN, validators},
};

pub(super) fn run(bytes: &[u8]) {
    if let Ok(request) = decode_request(bytes) {
        assert_eq!(encode(&request).expect("it was decoded"), bytes, "two encodings of one request");
        if let Request::Order(ordered) = request {
            open(&ordered.body, ordered.hints.as_ref());
        }
    }
    if let Ok(response) = decode_response(bytes) {
        assert_eq!(encode(&response).expect("it was decoded"), bytes, "two encodings of one response");
        if let Response::Outcome(parts) = response {
            open(&parts.body, None);
            _ = parts.receipts.open::<Receipts>(BlobKind::Receipts);
            _ = Delta::open(&parts.delta);
        }
    }
}

/// Opens a body and its hints, like a validator that executes it.
fn open(body: &Blob, hints: Option<&Blob>) {
    let Ok(body) = body.open::<Body>(BlobKind::Body) else { return };
    let Ok(transactions) = decode_body(&body, &CHAIN.genesis.chain) else { return };
    if let Some(hints) = hints {
        _ = open_hints(hints, CHAIN.genesis.chain.gas_limit, Address::ZERO, &transactions);
    }
}

/// Returns orders, messages, questions and outcomes of the chain's own batches.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let number = BatchNumber::new(1);
    let blob = |kind| CHAIN.store.blob(kind, number).expect("memory is readable");
    let (body, hints) = (blob(BlobKind::Body).expect("a body"), blob(BlobKind::Hints));
    let content = body.content(BlobKind::Body).expect("its own body");
    let order = Order {
        epoch: Epoch(0),
        view: 0,
        number,
        parent: Digest::ZERO,
        timestamp_ms: 1,
        transactions: content_digest(BlobKind::Body, &content),
    };
    let order = SignedOrder::new(order, &Digest::ZERO, &validators()[0]);
    let parts = OutcomeParts {
        header: CHAIN.headers[0].clone(),
        body: body.clone(),
        receipts: blob(BlobKind::Receipts).expect("receipts"),
        delta: blob(BlobKind::Delta).expect("a delta"),
    };
    let requests = [
        Request::Order(Box::new(Ordered { order, body, hints })),
        Request::Outcome { number, token: Digest::ZERO },
    ];
    let words = messages().into_iter().map(|message| Request::Say(Epoch(0), Box::new(message)));
    let responses = [Response::Taken, Response::Lacks, Response::Outcome(Box::new(parts))];
    let requests = requests.into_iter().chain(words).map(|request| encode(&request).expect("it encodes"));
    requests.chain(responses.iter().map(|response| encode(response).expect("it encodes"))).collect()
}
