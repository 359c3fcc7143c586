//! [`Plot`]: lines over points, as an SVG file.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const SIZE_PX: (u32, u32) = (640, 400);
const COLORS: [RGBColor; 3] = [RGBColor(200, 60, 60), RGBColor(40, 110, 190), RGBColor(40, 140, 80)];

/// A plot with equal distances between points, and a logarithmic scale of values.
pub(super) struct Plot {
    pub(super) title: &'static str,
    /// The quantity on the horizontal axis.
    pub(super) axis: &'static str,
    /// Each line's name, and its value at each point.
    pub(super) lines: Vec<(&'static str, Vec<(f64, f64)>)>,
}

impl Plot {
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn draw(&self, path: &Path) -> Result<()> {
        // The library's errors borrow the canvas.
        self.try_draw(path).map_err(|error| anyhow!("cannot write {}: {error}", path.display()))
    }

    fn try_draw(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let points: Vec<f64> =
            self.lines.first().map(|(_, line)| line.iter().map(|(at, _)| *at).collect()).unwrap_or_default();
        let values = self.lines.iter().flat_map(|(_, line)| line.iter().map(|(_, value)| *value));
        let (least, most) =
            values.fold((f64::MAX, 0.0_f64), |(least, most), it| (least.min(it), most.max(it)));
        let canvas = SVGBackend::new(path, SIZE_PX).into_drawing_area();
        canvas.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&canvas)
            .margin(12)
            .caption(self.title, ("sans-serif", 16))
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(-0.2..points.len() as f64 - 0.8, (least / 1.5..most * 1.5).log_scale())?;
        let label = |place: &f64| {
            let at = points.get(place.round() as usize).filter(|_| (place - place.round()).abs() < 1e-6);
            at.map(f64::to_string).unwrap_or_default()
        };
        chart
            .configure_mesh()
            .x_labels(points.len())
            .x_label_formatter(&label)
            .x_desc(self.axis)
            .y_label_formatter(&|value| format!("{value:.0}"))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for ((name, line), color) in self.lines.iter().zip(COLORS) {
            let places: Vec<_> =
                line.iter().enumerate().map(|(place, (_, value))| (place as f64, *value)).collect();
            chart
                .draw_series(LineSeries::new(places, color.stroke_width(2)).point_size(3))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], color.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.2))
            .draw()?;
        Ok(canvas.present()?)
    }
}
