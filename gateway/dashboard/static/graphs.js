// Learned graphs: which step follows which, of each type of agent, as a table.

import { count, duration, h, percent, show } from "./dom.js";

export class GraphsView {
  #root;
  #control;
  #state = { kind: "loading" };

  constructor(root, control) {
    this.#root = root;
    this.#control = control;
  }

  async load() {
    try {
      const answer = await this.#control.json("graphs");
      this.#state = { kind: "loaded", graphs: Array.isArray(answer) ? answer : answer.graphs ?? [] };
    } catch (error) {
      this.#state = { kind: "failed", why: error.status === 404 ? "this gateway does not offer them" : error.message };
    }
    this.paint();
  }

  paint() {
    const { kind, graphs, why } = this.#state;
    show(this.#root, JSON.stringify(this.#state), () => {
      if (kind === "loading") return h("p", { className: "hint" }, "Loading …");
      if (kind === "failed") return h("p", { className: "hint" }, `Graphs could not be read: ${why}.`);
      if (graphs.length === 0) return h("p", { className: "hint" }, "No graph is learned yet. The gateway has one for each type of agent once enough of its runs were seen; let some agents finish.");
      return graphs.map(section);
    });
  }
}

function section(graph, at) {
  const nodes = new Map((graph.nodes ?? []).map((node) => [node.id, node]));
  const facts = [`${count(graph.tasks)} conversations that ended`, `${count(graph.steps)} steps`, graph.is_known === false ? "not enough yet to act on" : "ends are acted on"];
  const titleId = `graph-${at}`;
  const columns = ["step", "followed by", "probability", "times", "pause, median", "95 % within"];
  return h("section", { className: "graph", "aria-labelledby": titleId },
    h("h3", { id: titleId }, `Type ${graph.id ?? at + 1}`),
    h("p", { className: "dim" }, facts.join(" · ")),
    h("div", { className: "scrolls-x", tabIndex: 0, role: "region", "aria-labelledby": titleId },
      h("table", {}, h("thead", {}, h("tr", {}, ...columns.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, ...(graph.edges ?? []).map((edge) => row(edge, nodes))))));
}

function row(edge, nodes) {
  const [step, next] = [edge.from, edge.to].map((id) => nodes.get(id) ?? { label: id });
  const cells = [step.label, next.label, percent(edge.probability), count(edge.count), duration(step.pause_p50_s), duration(step.pause_p95_s)];
  return h("tr", {}, ...cells.map((text) => h("td", {}, String(text))));
}
