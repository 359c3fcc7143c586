//! Samples the metrics of the mesh.

use slipstream_broadcast::{DECODED_MS, MeshStatus, Moved};

use crate::metrics::{Metrics, raise};

pub(super) fn sample_mesh(status: &MeshStatus, metrics: &Metrics) {
    raise(&metrics.mesh_sent_bytes, status.bytes_sent);
    raise(&metrics.mesh_useless_bytes, status.bytes_useless);
    for (part, Moved { sent, useful, duplicate, useless }) in &status.parts {
        let kinds = [("sent", sent), ("useful", useful), ("duplicate", duplicate), ("useless", useless)];
        for (kind, bytes) in kinds {
            raise(&metrics.mesh_chunk_bytes.with_label_values(&[&part.to_string(), kind]), *bytes);
        }
    }
    raise(&metrics.mesh_refused, status.refused);
    raise(&metrics.mesh_batches.with_label_values(&["complete"]), status.delivered);
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
