//! What the metrics say of the mesh.

use slipstream_broadcast::{DECODED_MS, MeshStatus};

use super::metrics::{Metrics, raise};

pub(super) fn sample_mesh(status: &MeshStatus, metrics: &Metrics) {
    raise(&metrics.mesh_sent_bytes, status.bytes_sent);
    for (kind, bytes) in [
        ("useful", status.bytes_useful),
        ("duplicate", status.bytes_duplicate),
        ("useless", status.bytes_useless),
    ] {
        raise(&metrics.mesh_received_bytes.with_label_values(&[kind]), bytes);
    }
    let complete = status.delivered - status.incomplete;
    raise(&metrics.mesh_batches.with_label_values(&["complete"]), complete);
    raise(&metrics.mesh_batches.with_label_values(&["incomplete"]), status.incomplete);
    for (codec, decoded) in &status.codecs {
        let ends = DECODED_MS.iter().map(|ms| (*ms as f64 / 1e3).to_string()).chain(["+Inf".to_owned()]);
        let mut total = 0;
        for (end, count) in ends.zip(decoded.decoded) {
            total += count;
            raise(&metrics.mesh_decode_bucket.with_label_values(&[codec.name(), &end]), total);
        }
        raise(&metrics.mesh_decode_count.with_label_values(&[codec.name()]), total);
        raise(&metrics.mesh_decode_sum.with_label_values(&[codec.name()]), decoded.decoded_s);
    }
    raise(&metrics.mesh_pulls, status.pulls);
    raise(&metrics.mesh_muted, status.muted);
    raise(&metrics.mesh_banned, status.banned);
    raise(&metrics.mesh_false_plans, status.liars);
}
