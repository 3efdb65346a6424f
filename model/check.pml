/* What all models have in common.
 *
 * A property is a bool that is true as long as it holds, so that whoever reads spin's answer is told which one was
 * broken. Each is declared with the guarantee of docs/guarantees.md that it stands for.
 *
 * Every fault (a crash, a lost answer, a lease that runs out under its holder, ...) takes one from a budget, and no
 * process looks twice where nothing has changed. So every run ends: the process watch is then the only one that can
 * move, and judges what is left. ltl ends says that there is no other way to go on for ever.
 */
#ifdef JUDGE /* of a planted bug: only whether it breaks the property that it is listed with */
#define MUST(property, holds) property = (holds); assert(JUDGE)
#else
#define MUST(property, holds) property = (holds); assert(property)
#endif

#define FAULT faults > 0 -> faults--

bool over = false; /* every process has come to rest */

ltl ends { <> over }
