//! Line charts, rendered as SVG.

use plotters::prelude::*;

use crate::error::Error;

/// Size of a chart in pixels.
const SIZE: (u32, u32) = (900, 460);
/// Width of the legend on the right, in pixels.
const LEGEND_WIDTH: u32 = 150;
/// Points are marked on lines with at most this many.
const FEW: usize = 16;
/// Colours of lines. Dashes distinguish lines once all colours are used.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x1b, 0x6c, 0xa8),
    RGBColor(0xd9, 0x5f, 0x02),
    RGBColor(0x2a, 0x9d, 0x4a),
    RGBColor(0xc2, 0x2f, 0x5e),
    RGBColor(0x6a, 0x4c, 0x93),
    RGBColor(0x8c, 0x6d, 0x1f),
    RGBColor(0x17, 0x9e, 0xa8),
    RGBColor(0x55, 0x55, 0x55),
];

/// Lines that share their axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// Title.
    pub title: String,
    /// Label of the horizontal axis.
    pub across: &'static str,
    /// Label of the vertical axis, which starts at 0.
    pub up: &'static str,
    /// Lines of the chart.
    pub lines: Vec<Line>,
}

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Name in the legend.
    pub name: String,
    /// Points (x, y), in the order in which they are joined.
    pub points: Vec<(f64, f64)>,
}

/// Charts of a report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Charts(pub Vec<Chart>);

impl Charts {
    /// Adds a line to the chart with this title, which is created if it does not exist.
    pub(crate) fn line(
        &mut self,
        title: &str,
        (across, up): (&'static str, &'static str),
        name: impl Into<String>,
        points: Vec<(f64, f64)>,
    ) {
        let line = Line {
            name: name.into(),
            points,
        };
        if let Some(chart) = self.0.iter_mut().find(|chart| chart.title == title) {
            return chart.lines.push(line);
        }
        self.0.push(Chart {
            title: title.into(),
            across,
            up,
            lines: vec![line],
        });
    }

    /// Draws all charts below each other.
    ///
    /// # Errors
    /// [`Error::Failed`] if the SVG backend fails.
    pub fn svg(&self) -> Result<String, Error> {
        let mut text = String::new();
        let bad = |why: DrawingAreaErrorKind<_>| Error::Failed(format!("cannot draw: {why}"));
        {
            let (width, height) = SIZE;
            let all = (width, height * self.0.len() as u32);
            let area = SVGBackend::with_string(&mut text, all).into_drawing_area();
            area.fill(&WHITE).map_err(bad)?;
            for (chart, area) in self.0.iter().zip(area.split_evenly((self.0.len(), 1))) {
                chart.draw(&area).map_err(bad)?;
            }
            area.present().map_err(bad)?;
        }
        Ok(text)
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type DrawResult =
    Result<(), DrawingAreaErrorKind<<SVGBackend<'static> as DrawingBackend>::ErrorType>>;

impl Chart {
    fn draw(&self, area: &Area<'_>) -> DrawResult {
        let (area, legend) = area.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let first = points().map(|point| point.0).reduce(f64::min);
        let last = points().map(|point| point.0).reduce(f64::max);
        let high = points().map(|point| point.1).fold(0.0, f64::max);
        // An axis needs a positive length.
        let first = first.unwrap_or_default();
        let last = last.filter(|last| *last > first).unwrap_or(first + 1.0);
        let high = if high > 0.0 { high * 1.05 } else { 1.0 };
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 20))
            .margin(14)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d(first..last, 0.0..high)?;
        let number = |value: &f64| ((value * 1e4).round() / 1e4).to_string();
        chart
            .configure_mesh()
            .x_desc(self.across)
            .y_desc(self.up)
            .x_label_formatter(&number)
            .y_label_formatter(&number)
            .light_line_style(WHITE)
            .bold_line_style(BLACK.mix(0.12))
            .draw()?;
        for (n, line) in (0..).zip(&self.lines) {
            let style = COLOURS[n % COLOURS.len()].stroke_width(2);
            let y = 60 + 20 * n as i32;
            let points = || line.points.iter().copied();
            if (n / COLOURS.len()).is_multiple_of(2) {
                chart.draw_series(LineSeries::new(points(), style))?;
                legend.draw(&PathElement::new([(0, y), (24, y)], style))?;
            } else {
                chart.draw_series(DashedLineSeries::new(points(), 6, 4, style))?;
                for from in [0, 14] {
                    legend.draw(&PathElement::new([(from, y), (from + 10, y)], style))?;
                }
            }
            if line.points.len() <= FEW {
                let dots = points().map(|point| Circle::new(point, 3, style.filled()));
                chart.draw_series(dots)?;
            }
            let name = Text::new(line.name.as_str(), (32, y - 7), ("sans-serif", 14));
            legend.draw(&name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charts() -> Charts {
        let mut charts = Charts::default();
        for n in 0..10 {
            let line = (0..20).map(|x| (f64::from(x), f64::from(x * n))).collect();
            charts.line("a < b & c", ("keys", "%"), format!("line {n}"), line);
        }
        charts.line("another", ("s", "GB/s"), "one point", vec![(1.0, 2.0)]);
        charts.line("nothing", ("s", "GB/s"), "no point", vec![]);
        charts
    }

    #[test]
    fn lines_of_one_title_share_a_chart() {
        let charts = charts();
        let lines: Vec<_> = charts.0.iter().map(|chart| chart.lines.len()).collect();
        assert_eq!(lines, [10, 1, 1]);
    }

    #[test]
    fn a_picture_has_every_title_axis_and_line() {
        let svg = charts().svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("a &lt; b &amp; c"), "{svg}");
        for text in ["line 0", "line 9", "keys", "GB/s", "one point"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
